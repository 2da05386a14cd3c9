"""The calibration record: the rules that passed their tests, all tests, and the model and task they were made for."""

from __future__ import annotations

import contextlib
import datetime as dt
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Any, ClassVar, Generic, Literal, NoReturn, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from rksc_tot.core.errors import ConfigError, TaskError
from rksc_tot.core.plugins.record_file import ChecksummedRecord
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.core.task import Question, Task
from rksc_tot.engine.base import Engine, Reader
from rksc_tot.policies.early_exit.cgee import EntropyStable, Margins, RivalStop, VerifySkip
from rksc_tot.policies.early_exit.fixed_sequence_testing import at_most, upper_bound
from rksc_tot.search.approximate.fingerprint import task_fingerprint, weights_of

R = TypeVar("R", bound=BaseModel)
Count = Annotated[int, Field(ge=0, le=10**5)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Risk = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Exit = Annotated[Margins | EntropyStable, Field(discriminator="name")]
AGAIN = "make one with rksc-tot calibrate"


class TestStep(BaseModel, Generic[R]):
    """One test of a walk (fixed-sequence testing).

    * ``level``: share of errors on the fitting part that the rule was made to allow.
    * ``n``: test examples on which the rule acted. ``k``: those on which its decision differed from the full one.
    * ``p``: P(Bin(n, δ) <= k).
    * ``saved``: share, 0..1, of the work on all test examples that the rule would have saved.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    level: Share
    rule: R
    n: Count
    k: Count
    p: Share
    saved: Share


class MechanismOutcome(BaseModel, Generic[R]):
    """The result for one mechanism.

    * ``examples``: number of test examples.
    * ``walk``: the tested rules, from strict to loose.
    * ``chosen``: index in ``walk`` of the accepted rule, None if there is none. ``refused``: why there is none.
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
        """The test of the accepted rule, None if there is none."""
        return None if self.chosen is None else self.walk[self.chosen]

    @property
    def rule(self) -> R | None:
        """The accepted rule, None if there is none."""
        return None if self.step is None else self.step.rule

    def passes(self, delta: float, alpha: float) -> bool:
        """Whether every step up to the chosen one passes its test; computed from n and k."""
        tested = [] if self.chosen is None else self.walk[: self.chosen + 1]
        return all(step.n > 0 and at_most(step.k, step.n, delta) <= alpha for step in tested)


class Probe(BaseModel):
    """The path of a task fingerprint: a problem as it was given, and thoughts."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    problem: JsonValue
    thoughts: tuple[str, ...] = ()


class CalibratedVerifier(Protocol):
    """The methods of a verifier that bind it to a calibration (see :class:`~rksc_tot.search.scoring.Scorer`)."""

    def reader(self, engine: Engine) -> Reader:
        """The engine that answers its label requests."""
        ...

    def labels_for(self, question: Question | None) -> tuple[str, ...]:
        """The labels that are read where the task asks ``question``."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """The name and the settings that a calibration is bound to."""
        ...


class Calibration(ChecksummedRecord):
    """Rules for early decisions, made for one verifier on one task, with their guarantee.

    Of the decisions that a rule takes early, at most a share ``delta`` differ from the full decision, with confidence
    1 - ``alpha`` for each mechanism. This holds for one node of each problem, as searches with ``strategy`` on such problems
    produce them.

    * ``model``, ``weights``, ``layers``: of the model that reads labels. ``verifier``: name and settings of the verifier.
      ``writer``: the weights of the model that writes thoughts, None if it is the same.
    * ``exit``: layer exit, of two kinds of rule the one that saved more on the fitting part. ``other``: the other kind, for
      comparison only.
    * ``skip``: verify skip. ``rivals``: rival stop.
    * ``problems``: number of problems searched. ``fitting``: number of those that the rules were made from; the others test them.
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
    verifier: dict[str, JsonValue]
    writer: str | None
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
        """Which of ``exit``, ``skip`` and ``rivals`` have an accepted rule."""
        return [name for name in ("exit", "skip", "rivals") if getattr(self, name).rule is not None]

    def bound(self, outcome: MechanismOutcome[Any]) -> float | None:
        """One-sided upper bound of the error rate of the accepted rule, at confidence 1 - ``alpha``."""
        return None if outcome.step is None else upper_bound(outcome.step.k, outcome.step.n, self.alpha)

    @classmethod
    def load(cls, file: Traversable | str) -> Calibration:
        """Load and check the file that :meth:`save` wrote; ``"embedded"`` is the calibration of the embedded model.

        Raises
        ------
        ConfigError
            If the file cannot be read or holds no valid calibration.
        """
        return super().load(
            files("rksc_tot.tasks.game24") / "weights" / "calibration.json" if file == "embedded" else file
        )

    # -- model and task ---------------------------------------------------------------------------------------------

    def check(self, engine: Engine, task: Task, verifier: CalibratedVerifier) -> None:
        """Check that the calibration was made for this model, task and verifier.

        Raises
        ------
        ConfigError
            The message says what differs.
        """
        reader, settings = verifier.reader(engine), verifier.fingerprint()
        if settings != self.verifier:
            then, now = self.verifier["name"], settings["name"]
            what = f"the verifier {then!r}, and the search has {now!r}"
            if then == now:
                what = f"the verifier {then!r} with the settings {self.verifier}, and the search has {settings}"
            raise ConfigError(
                f"the calibration was made with {what}", hint="use that verifier, or leave out the calibration"
            )
        if (name := task.name or type(task).__name__) != self.task:
            self._refuse(f"the task: {self.task!r}, now {name!r}")
        dtype = reader.numerics.get("dtype")
        writer = None if reader is engine else weights_of(engine)
        found: dict[str, tuple[object, object]] = {
            "the layers": (self.layers, reader.layers),
            "the dtype": (self.dtype, dtype),
            "the weights": (self.weights[:12], weights_of(reader)[:12]),
        }
        for what, (made_for, there) in found.items():
            if made_for != there:
                self._refuse(f"{what}: {made_for} of {self.model!r}, now {there} of {reader.name!r}")
        if writer != self.writer:
            self._refuse(f"the thoughts: another model wrote them, now {engine.name!r} does")
        current = None
        with contextlib.suppress(TaskError):
            current = task_fingerprint(task, self.probe.problem, self.probe.thoughts)
        if current is None:
            self._refuse(
                f"the task {task.name or type(task).__name__!r} refuses the problem {shown(self.probe.problem)}"
            )
        elif (labels := verifier.labels_for(None) or current.labels) != self.labels:
            then, now = ", ".join(self.labels), ", ".join(labels) or "none"
            self._refuse(f"the labels: {then}, now {now}")
        elif current.hash != self.prompt:
            self._refuse("the text of the prompt or question, or the value of a label, has changed")

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigError(f"the calibration is for another model or task: {what}", hint=AGAIN)
