"""Process reward models: Lightman et al. 2023, https://arxiv.org/abs/2305.20050. Outcome reward models are read the same way.

The model runs on an engine and a KV tree of its own, beside those of the model that writes. Each thought is a step: it is
appended to the path of the thought before it, so that only the new step is forwarded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from pydantic import Field, PrivateAttr, field_validator

from rksc_tot.core.errors import ConfigError, ContextOverflow, VerifierError
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, shown
from rksc_tot.core.task import Prompt, Question
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import STEP_LABELS, Account, Engine, LabelRequest, LabelScores, Reader
from rksc_tot.search import Search
from rksc_tot.search.scoring import Assessment, Score
from rksc_tot.verifiers.base import Verifier
from rksc_tot.verifiers.reward_model.aggregation import AGGREGATES

if TYPE_CHECKING:
    from rksc_tot.engine.reward.engine import RewardEngine

PLACE = ("folder", "dtype", "device", "kv_budget", "trust_remote_code")
"""Settings that a calibration is not bound to: it is bound to the weights."""
NO_SCORE = ("device", "kv_budget")
"""Settings that scores do not depend on."""


class PRM(Verifier):
    """Process reward model: the probability that a step is correct, by a model trained for that (prm:FOLDER).

    The folder's config and weights show the kind of the model: classes at each token, a head at a marker, a value head, or a
    causal LM that says + or -. A sequence-classification model judges the whole text so far (outcome).

    Parameters
    ----------
    folder
        A folder with config.json, safetensors weights and tokenizer.
    aggregate
        The score of a path from those of its steps: that of the ``last`` step, their ``min``, ``mean`` or ``product``.
    output
        ``probability``: P(correct), 0..1. ``difference``: P(correct) - P(incorrect), -1..1 (PURE).
    problem
        A function that makes the problem's text from the problem. None: the task's prompt; of chat messages, the last user's.
    model_kind, marker
        The kind of the model, if the folder does not show it; and the text at which steps are read, or that separates them, if
        it is not the kind's usual one.
    dtype, device, trust_remote_code
        As in :func:`rksc_tot.load_engine`.
    kv_budget
        As in :func:`rksc_tot.load_engine`. A :class:`~rksc_tot.SharedKVBudget` that the other engine has as well
        limits the KV of both together.
    """

    name: str = "prm"
    folder: str = Field(min_length=1)
    aggregate: Literal["last", "min", "mean", "product"] = "last"
    output: Literal["probability", "difference"] = "probability"
    problem: Callable[[Any], str] | None = None
    model_kind: str | None = None
    marker: str | None = None
    dtype: str = "float32"
    device: str = "cpu"
    trust_remote_code: bool = False
    kv_budget: Any = Field("1GiB", repr=False)
    _engine: Any = PrivateAttr(None)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)
    _paths: Any = PrivateAttr(default_factory=WeakKeyDictionary)  # of each search

    @field_validator("folder", mode="before")
    @classmethod
    def _as_text(cls, folder: object) -> object:
        return str(folder) if isinstance(folder, PathLike) else folder

    def describe(self) -> dict[str, Any]:
        """The name and the settings that scores depend on."""
        return {name: value for name, value in super().describe().items() if name not in NO_SCORE}

    def fingerprint(self) -> dict[str, Any]:
        """The name and the settings that a calibration is bound to, beside the weights."""
        return {name: value for name, value in super().describe().items() if name not in PLACE}

    def labels_for(self, question: Question | None) -> tuple[str, ...]:
        """The classes of the head."""
        return STEP_LABELS

    def bounds(self, search: Search, node: Node) -> tuple[float, float]:
        """The range of the scores."""
        return (-1.0, 1.0) if self.output == "difference" else (0.0, 1.0)

    def reader(self, engine: Engine) -> Reader:
        """The engine of the reward model."""
        return self.load()

    def load(self) -> RewardEngine:
        """The engine of the reward model, loaded at the first call.

        Raises
        ------
        ConfigError
            If settings do not fit the model.
        ModelLoadError
            If the folder holds no reward model that can be read.
        UnsupportedModel
            If trees are computed differently on it than plain sequences.
        """
        with self._lock:
            if self._engine is None:
                self._engine = self._loaded()
            engine: RewardEngine = self._engine
            return engine

    def close(self) -> None:
        """Free the reward model and its KV. A later search loads it again."""
        with self._lock:
            if self._engine is not None:
                self._engine.close()
            self._engine = None

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """Read the steps of all nodes that were not read before, in one call."""
        paths = self._paths_of(search)
        if isinstance(paths, VerifierError):
            raise paths
        steps = [[step for step in search.tree.lineage(node)[1:] if step.text.strip()] for node in nodes]
        faults: dict[int, VerifierError] = {}
        wanted: dict[int, tuple[Node, Any]] = {}
        for node, path in zip(nodes, steps, strict=True):
            if not path:
                faults[node.id] = self.failure(node, "the path has no text", "no step was written yet")
                continue
            try:
                for n, step in enumerate(path, start=1):
                    if step.id not in paths.read and (self.aggregate != "last" or step is path[-1]):
                        wanted[step.id] = (step, paths.handle(path[:n]))
            except ContextOverflow as error:
                faults[node.id] = self.failure(node, error)
        asked = [(step, LabelRequest(handle, "", STEP_LABELS)) for step, handle in wanted.values()]
        requests, read = [request for _, request in asked], [step for step, _ in asked]
        replies = await search.label(requests, read, paths.engine) if asked else []
        for (step, _), reply in zip(asked, replies, strict=True):
            if reply is not None:
                paths.read[step.id] = reply
        return [
            faults[node.id] if node.id in faults else self._assessed(paths, node, path)
            for node, path in zip(nodes, steps, strict=True)
        ]

    def release(self, search: Search) -> None:
        """Release the paths of the search."""
        if (paths := self._paths.pop(search, None)) is not None:
            paths.release()

    def _assessed(self, paths: StepPaths, node: Node, path: Sequence[Node]) -> Score:
        """The score of a path whose steps were read; None if the time ran out before."""
        needed = path[-1:] if self.aggregate == "last" else path
        if any(step.id not in paths.read for step in needed):
            return None
        readings = [paths.read[step.id] for step in needed]
        score = AGGREGATES[self.aggregate]([self._value(reading) for reading in readings])
        last = readings[-1]
        paths.engine.rate(paths.handle(path), score, node.depth)
        return Assessment(score, last.probabilities, last.layer, all(reading.exact for reading in readings))

    def _value(self, reading: LabelScores) -> float:
        incorrect, correct = (reading.probabilities[label] for label in STEP_LABELS)
        return correct - incorrect if self.output == "difference" else correct

    def _paths_of(self, search: Search) -> StepPaths | VerifierError:
        """The paths of a search; the error if its problem has no text."""
        if (known := self._paths.get(search)) is not None:
            found: StepPaths = known
            return found
        try:
            with calling_user_code("problem"):
                text: object = (
                    last_words(search.prompt).strip() if self.problem is None else self.problem(search.problem)
                )
        except UserCodeError as raised:
            return self.failure(search.root, raised)
        if not isinstance(text, str) or not text.strip():
            return self.failure(search.root, f"the problem's text is {shown(text)}", "give it with the setting problem")
        made = self._paths[search] = StepPaths(self.load(), text)
        return made

    def _loaded(self) -> RewardEngine:
        from rksc_tot.engine.reward.load import load_reward_engine

        if self.aggregate == "product" and self.output == "difference":
            raise ConfigError(
                "a product of differences would call two wrong steps right",
                hint="use min, mean or last, or probability",
            )
        engine = load_reward_engine(
            self.folder, kind=self.model_kind, marker=self.marker, dtype=self.dtype, device=self.device,
            trust_remote_code=self.trust_remote_code, kv_budget=self.kv_budget,
        )  # fmt: skip
        if not engine.layout.judges_steps and self.aggregate != "last":
            engine.close()
            raise ConfigError(
                f"{self.folder!r} judges whole answers, not steps, and aggregate is {self.aggregate!r}", hint="use last"
            )
        return engine


def prm(folder: str | PathLike[str], **settings: Any) -> PRM:
    """A process reward model as verifier, loaded at once. ``settings``: the fields of :class:`PRM`, such as ``aggregate``.

    ::

        solve("game24", "4 5 6 10", engine=engine, verifier=prm("Qwen2.5-Math-PRM-7B", aggregate="min"))

    Raises the errors of :meth:`PRM.load`.
    """
    verifier = PRM(folder=folder, **settings)
    verifier.load()
    return verifier


class StepPaths:
    """The paths of one search in the reward model's tree.

    Attributes
    ----------
    engine
        The engine of the reward model.
    read
        By the id of a node: the reading of its step.
    """

    def __init__(self, engine: RewardEngine, problem: str) -> None:
        self.engine = engine
        self.read: dict[int, LabelScores] = {}
        self._opening = engine.open(problem, Account())
        self._handles: dict[int, Any] = {}

    def handle(self, steps: Sequence[Node]) -> Any:
        """The path up to the last of these steps. Raises ContextOverflow if it is too long."""
        at = self._opening
        for step in steps:
            if step.id not in self._handles:
                self._handles[step.id] = self.engine.extend(at, step.thought.full_text.strip())
            at = self._handles[step.id]
        return at

    def release(self) -> None:
        """Release every handle."""
        if not self.engine.engine_thread.closed:
            for handle in (*self._handles.values(), self._opening):
                self.engine.release(handle)


def last_words(prompt: Prompt) -> str:
    """A plain prompt, or what the user said last in chat messages."""
    if isinstance(prompt, str):
        return prompt
    return next((message["content"] for message in reversed(prompt) if message["role"] == "user"), "")
