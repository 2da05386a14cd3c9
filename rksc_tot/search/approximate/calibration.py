"""A calibration as a file: the rules that passed, the model and task they hold for, and every test."""

from __future__ import annotations

import contextlib
import datetime as dt
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Any, ClassVar, Generic, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from rksc_tot.core.errors import ConfigError, TaskError
from rksc_tot.core.plugins.record_file import ChecksummedRecord
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.core.task import Task
from rksc_tot.engine.base import Engine
from rksc_tot.policies.early_exit.cgee import EntropyStable, Margins, RivalStop, VerifySkip
from rksc_tot.policies.early_exit.learn_then_test import at_most, upper_bound
from rksc_tot.search.approximate.fingerprint import task_fingerprint, weights_of

R = TypeVar("R", bound=BaseModel)
Count = Annotated[int, Field(ge=0, le=10**5)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Risk = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Exit = Annotated[Margins | EntropyStable, Field(discriminator="name")]
AGAIN = "make one with rksc-tot calibrate"


class TestStep(BaseModel, Generic[R]):
    """One test of the walk.

    ``level``: share of errors that was tolerated on the fitting part when this rule was made. ``n``: test examples on which
    the rule acted. ``k``: on how many of those the decision was another one than in full. ``p``: P(Bin(n, δ) <= k).
    ``saved``: share of the work on all test examples that the rule would have saved.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    level: Share
    rule: R
    n: Count
    k: Count
    p: Share
    saved: Share


class MechanismOutcome(BaseModel, Generic[R]):
    """The result of one mechanism: a rule that passed, or why there is none, and the walk from strict to loose.

    ``examples``: how many test examples there were. ``chosen``: which step of ``walk`` is the rule, None if ``refused``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    examples: Count
    walk: Annotated[tuple[TestStep[R], ...], Field(max_length=1000)] = ()
    chosen: Annotated[int, Field(ge=0)] | None = None
    refused: str | None = None

    @model_validator(mode="after")
    def _one_or_the_other(self) -> MechanismOutcome[R]:
        if (self.chosen is None) == (self.refused is None):
            raise ValueError("a mechanism has either a chosen step or the reason why it is refused")
        if self.chosen is not None and self.chosen >= len(self.walk):
            raise ValueError(f"step {self.chosen} is chosen of {len(self.walk)}")
        if any(step.k > step.n or step.n > self.examples for step in self.walk):
            raise ValueError("a step has more errors than acts, or more acts than examples")
        return self

    @property
    def step(self) -> TestStep[R] | None:
        """The last step that passed."""
        return None if self.chosen is None else self.walk[self.chosen]

    @property
    def rule(self) -> R | None:
        """Of that step."""
        return None if self.step is None else self.step.rule

    def passes(self, delta: float, alpha: float) -> bool:
        """Whether every step up to the chosen one passes its test, computed anew."""
        tested = [] if self.chosen is None else self.walk[: self.chosen + 1]
        return all(step.n > 0 and at_most(step.k, step.n, delta) <= alpha for step in tested)


class Probe(BaseModel):
    """A path that the fingerprint of a task is taken at: the problem as it was given, and its thoughts."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    problem: JsonValue
    thoughts: tuple[str, ...] = ()


class Calibration(ChecksummedRecord):
    """Which decisions may be taken early for one model on one task, with what guarantee.

    Of the decisions a rule here takes early, at most a share ``delta`` differ from those taken in full, with confidence
    1 - ``alpha`` for each mechanism; for nodes as searches with ``strategy`` on such problems bring them about, one of each
    problem.

    ``exit``: after which layer a verifier's pass may stop; of two kinds of rule the one that promised more on the fitting part.
    ``other``: what became of the other kind, for comparison only. ``skip``: when siblings need not be verified. ``rivals``:
    when branches need not be written to their end. ``problems``: how many were searched; ``fitting``: how many of those made
    the candidates, so that the others could test them.
    """

    kind: ClassVar[str] = "calibration"
    again: ClassVar[str] = AGAIN
    schema_version: Literal[1] = 1
    model: str
    revision: str | None = None
    weights: str
    dtype: str | None
    layers: Annotated[int, Field(ge=1)]
    task: str
    prompt: str
    probe: Probe
    labels: Annotated[tuple[str, ...], Field(min_length=2)]
    strategy: dict[str, JsonValue]
    delta: Risk
    alpha: Risk
    seed: int
    problems: Count
    fitting: Count
    outside: Share
    date: dt.date
    exit: MechanismOutcome[Exit]
    other: MechanismOutcome[Exit]
    skip: MechanismOutcome[VerifySkip]
    rivals: MechanismOutcome[RivalStop]

    @model_validator(mode="after")
    def _holds_together(self) -> Calibration:
        for name in ("exit", "other", "skip", "rivals"):
            outcome: MechanismOutcome[Any] = getattr(self, name)
            if not outcome.passes(self.delta, self.alpha):
                raise ValueError(
                    f"the rule under {name!r} does not pass its test at delta {self.delta} and alpha {self.alpha}"
                )
        for step in (*self.exit.walk, *self.other.walk):
            looked = step.rule.thresholds if isinstance(step.rule, Margins) else step.rule.layers
            if max(looked) >= self.layers:
                raise ValueError(f"a rule exits after layer {max(looked)} of {self.layers}")
        return self

    @property
    def accepted(self) -> list[str]:
        """Which of ``exit``, ``skip`` and ``rivals`` passed."""
        return [name for name in ("exit", "skip", "rivals") if getattr(self, name).rule is not None]

    def bound(self, outcome: MechanismOutcome[Any]) -> float | None:
        """One-sided upper bound, at confidence 1 - ``alpha``, of the error rate of the rule of an outcome."""
        return None if outcome.step is None else upper_bound(outcome.step.k, outcome.step.n, self.alpha)

    @classmethod
    def load(cls, file: Traversable | str) -> Calibration:
        """What :meth:`save` wrote, checked anew; ``"embedded"`` names the one that comes with the embedded model.

        Raises
        ------
        ConfigError
            If the file cannot be read, or is not such a calibration.
        """
        return super().load(
            files("rksc_tot.tasks.game24") / "weights" / "calibration.json" if file == "embedded" else file
        )

    # -- what it holds for -------------------------------------------------------------------------------------------

    def check(self, engine: Engine, task: Task) -> None:
        """Refuse a model or a task that the calibration was not made for.

        Raises
        ------
        ConfigError
            It says what differs.
        """
        if (name := task.name or type(task).__name__) != self.task:
            self._refuse(f"the task was {self.task!r}, and is {name!r}")
        dtype = engine.numerics.get("dtype")
        found: dict[str, tuple[object, object]] = {
            "the layers": (self.layers, engine.layers),
            "the numbers": (self.dtype, dtype),
            "the weights": (self.weights[:12], weights_of(engine)[:12]),
        }
        for what, (made_for, there) in found.items():
            if made_for != there:
                self._refuse(f"{what} were {made_for} of {self.model!r}, and are {there} of {engine.name!r}")
        wording = None
        with contextlib.suppress(TaskError):
            wording = task_fingerprint(task, self.probe.problem, self.probe.thoughts)
        if wording is None:
            self._refuse(f"the task {task.name or type(task).__name__!r} does not take {shown(self.probe.problem)}")
        elif wording.labels != self.labels:
            then, now = ", ".join(self.labels), ", ".join(wording.labels) or "none"
            self._refuse(f"the labels were {then}, and are {now}")
        elif wording.hash != self.prompt:
            self._refuse("the wording of prompt or question, or the worth of a label, has changed")

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigError(f"the calibration was made for something else: {what}", hint=AGAIN)
