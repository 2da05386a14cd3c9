"""Probe: a linear head on the hidden state that generation has already computed at the end of a thought.

The score needs no question, no KV and no forward pass. ``rksc-tot fit probe`` fits the head for one model, layer and task.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, ClassVar, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rksc_tot.core.errors import ConfigError, TaskError
from rksc_tot.core.plugins.record_file import ChecksummedRecord
from rksc_tot.core.task import Task
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import Engine, StatesEngine
from rksc_tot.search import Search
from rksc_tot.search.approximate.calibration import Probe
from rksc_tot.search.approximate.fingerprint import task_fingerprint, weights_of
from rksc_tot.search.scoring import Assessment, Score
from rksc_tot.verifiers.base import Verifier

Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Labels = Literal["rollouts", "checker"]


class ProbeHead(BaseModel):
    """A linear head for the thoughts of one depth.

    * ``depth``: number of thoughts of the path; None: all depths without a head of their own.
    * ``layer``: the decoder layer, counted from 1, after which the state is read. ``weight``, ``offset``: of the head.
    * ``auc``: for each layer, the AUC on held-out problems; None if they had one kind of thought only.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    depth: Annotated[int, Field(ge=1)] | None
    layer: Annotated[int, Field(ge=1)]
    weight: Annotated[tuple[Finite, ...], Field(min_length=1)]
    offset: Finite
    auc: tuple[Share | None, ...]

    def probability(self, state: Sequence[float]) -> float:
        """The probability, 0..1, that a thought with this hidden state ``[H]`` leads to a right answer."""
        logit = self.offset + sum(w * x for w, x in zip(self.weight, state, strict=True))
        return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0


class ProbeFit(ChecksummedRecord):
    """Fitted heads, and the model and task that they were fitted to.

    * ``heads``: one for each depth with enough thoughts, the last one for all other depths.
    * ``labels``: whether thoughts were labelled by rollouts, with the task's ``check``, or by its exact ``promising``.
    * ``problems``, ``thoughts``: numbers fitted on.
    """

    kind: ClassVar[str] = "probe"
    again: ClassVar[str] = "make one with rksc-tot fit probe"
    schema_version: Literal[1] = 1
    model: str
    weights: str
    layers: Annotated[int, Field(ge=1)]
    task: str
    prompt: str
    path: Probe
    heads: Annotated[tuple[ProbeHead, ...], Field(min_length=1)]
    labels: Labels
    problems: Annotated[int, Field(ge=1)]
    thoughts: Annotated[int, Field(ge=2)]
    seed: int
    date: dt.date

    @model_validator(mode="after")
    def _holds_together(self) -> ProbeFit:
        for head in self.heads:
            if head.layer > self.layers or len(head.auc) != self.layers:
                raise ValueError(f"layer {head.layer} and {len(head.auc)} figures do not fit {self.layers} layers")
        if self.heads[-1].depth is not None:
            raise ValueError("the last head is not for all other depths")
        return self

    @classmethod
    def load(cls, file: Traversable | str) -> ProbeFit:
        """Load and check the file that :meth:`save` wrote; ``"embedded"`` is the probe of the embedded model.

        Raises
        ------
        ConfigError
            If the file cannot be read or holds no valid probe.
        """
        return super().load(files("rksc_tot.tasks.game24") / "weights" / "probe.json" if file == "embedded" else file)

    def check(self, engine: Engine, task: Task) -> None:
        """Check that the probe was fitted to this model and task.

        Raises
        ------
        ConfigError
            The message says what differs.
        """
        if (name := task.name or type(task).__name__) != self.task:
            self._refuse(f"the task: {self.task!r}, now {name!r}")
        if self.layers != engine.layers or self.weights != weights_of(engine):
            self._refuse(
                f"the model: {self.model!r} with {self.layers} layers, now {engine.name!r} with {engine.layers}"
            )
        try:
            current = task_fingerprint(task, self.path.problem, self.path.thoughts).hash
        except TaskError as error:
            self._refuse(error.message)
        if current != self.prompt:
            self._refuse("the text of the prompt or question, or the value of a label, has changed")

    def head(self, depth: int) -> ProbeHead:
        """The head for thoughts of a depth."""
        return next((head for head in self.heads if head.depth == depth), self.heads[-1])

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigError(f"the probe is for another model or task: {what}", hint=self.again)


class LinearProbe(Verifier):
    """Probe: the probability, 0..1, by a linear head on the hidden state at the end of the thought. It needs no forward pass.

    The state is that of the row that predicts the last token of the thought. A thought has none if it was proposed, changed by
    ``parse``, or followed by an observation.

    Parameters
    ----------
    file : str
        The file of ``rksc-tot fit probe``; ``embedded``: the probe of the embedded model for the game of 24.
    """

    name: str = "probe"
    free: ClassVar[bool] = True
    reads_states: ClassVar[bool] = True
    file: str = "embedded"

    @cached_property
    def fit(self) -> ProbeFit:
        """The fitted head. Raises ConfigError if the file cannot be read or holds no valid probe."""
        return ProbeFit.load(self.file)

    def check(self, engine: Engine, task: Task) -> None:
        """Check that the engine keeps states, and that the probe was fitted to this model and task."""
        if not isinstance(engine, StatesEngine) or not engine.layers:
            raise ConfigError(f"{engine.name!r} keeps no hidden states", hint="use another verifier than 'probe'")
        self.fit.check(engine, task)

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """Read the states of all nodes."""
        engine = search.engine
        if not isinstance(engine, StatesEngine):
            raise ConfigError(f"{engine.name!r} keeps no hidden states", hint="use another verifier than 'probe'")
        return [self._score(engine, node) for node in nodes]

    def bounds(self, search: Search, node: Node) -> tuple[float, float]:
        """0 and 1."""
        return 0.0, 1.0

    def _score(self, engine: StatesEngine, node: Node) -> Score:
        head = self.fit.head(node.depth)
        state = engine.hidden_state(node._handle, head.layer)
        if state is None:
            what = "a thought that was proposed, changed by parse, or followed by an observation has no hidden state"
            return self.failure(node, what, "use another verifier")
        return Assessment(head.probability(state), exact=node.exact)
