"""What searches are made with: names looked up, kinds checked, what a task usually wants filled in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError, TaskError
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, shown
from rksc_tot.core.task import Path, Task
from rksc_tot.engine.base import CompressingEngine, Engine, Sampling
from rksc_tot.search.approximate.fingerprint import weights_of
from rksc_tot.search.approximate.settings import RKSC
from rksc_tot.search.expansion import sampling_of
from rksc_tot.search.task_calls import HINT
from rksc_tot.search.validation import setting_faults

if TYPE_CHECKING:
    from rksc_tot.strategies.base import Strategy
    from rksc_tot.verifiers.base import Verifier

T = TypeVar("T")


@dataclass(frozen=True)
class Setup:
    """Everything about searches but their problems; see :func:`~rksc_tot.solve.asolve` for the fields."""

    task: Task
    engine: Engine
    strategy: Strategy
    verifier: Verifier | None
    budget: Budget
    seed: int
    rksc: RKSC | None
    sampling: Sampling

    @classmethod
    def of(
        cls,
        task: Task | str,
        engine: Engine,
        strategy: Strategy | str = "bfs",
        verifier: Verifier | str | None = None,
        budget: Budget | None = None,
        seed: int = 0,
        rksc: RKSC | None = None,
        sampling: Sampling | None = None,
    ) -> Setup:
        """The arguments as a setup.

        Raises
        ------
        ConfigError
            If one is of the wrong kind, or names something that is not there.
        """
        task = _task(task)
        engine = _of_kind(Engine, engine, "engine", "load_engine makes one")  # type: ignore[type-abstract]
        _check_compression(engine, task)
        return cls(
            task,
            engine,
            _strategy(strategy, task),
            None if verifier is None else verifier_of(verifier),
            budget_of(budget),
            seed,
            None if rksc is None else _of_kind(RKSC, rksc, "rksc", "such as RKSC(calibration='embedded')").loaded(),
            sampling_for(task, sampling),
        )

    def judge_of(self, problem: Any) -> Verifier:
        """Who scores thoughts on a problem, which is in the task's own form."""
        return self.verifier or verifier_of(usual_verifier(self.task, problem))


def budget_of(budget: Budget | None) -> Budget:
    """The budget, one without limits in place of None."""
    return Budget() if budget is None else _of_kind(Budget, budget, "budget", "such as Budget(tokens=1000)")


def sampling_for(task: Task, sampling: Sampling | None) -> Sampling:
    """How thoughts are drawn: the fields that ``sampling`` was given, the others as the task has them. Raises ConfigError."""
    given = Sampling() if sampling is None else _of_kind(Sampling, sampling, "sampling", "such as Sampling(top_p=0.9)")
    return sampling_of(task, given.model_dump(exclude_unset=True))


def usual_settings(task: Task, strategy: str) -> dict[str, Any]:
    """The settings a task wants for a strategy given by its name.

    Raises
    ------
    TaskError
        If ``task.usual`` is no mapping of mappings.
    """
    for wrong in (wrong for name, wrong in setting_faults(task) if name == "usual"):
        raise TaskError(wrong, hint=HINT)
    return dict(task.usual.get(strategy, {}))


def usual_verifier(task: Task, problem: Any) -> str:
    """The verifier of a search that names none: the model's own judgement if the task has a question, else what is free.

    No search asks at the root: a question that fails for want of a thought is a question all the same.
    """
    try:
        with calling_user_code("question"):
            return "likelihood" if task.question(problem, Path()) is None else "lm_value"
    except UserCodeError:
        return "lm_value"


def verifier_of(verifier: Verifier | str) -> Verifier:
    """The verifier, or the one of that name. Raises ConfigError if there is none of it."""
    from rksc_tot.verifiers.base import VERIFIERS, Verifier

    if isinstance(verifier, str):
        return VERIFIERS.make(verifier)
    plain = callable(verifier) and not isinstance(verifier, type)
    hint = "put @verifier above the function" if plain else "give one, or the name of an installed one"
    return _of_kind(Verifier, verifier, "verifier", hint)


def _check_compression(engine: Engine, task: Task) -> None:
    """Refuse an engine whose compression policy was fitted to another model or task."""
    if isinstance(engine, CompressingEngine) and engine.compression is not None:
        engine.compression.check_task(task.name or type(task).__name__)
        engine.compression.check_model(engine.name, engine.layers, lambda: weights_of(engine))


def _task(task: Task | str) -> Task:
    if isinstance(task, str):
        from rksc_tot.tasks import load_task

        return load_task(task)
    return _of_kind(Task, task, "task", "write a class of it, or use function_task")


def _strategy(strategy: Strategy | str, task: Task) -> Strategy:
    from rksc_tot.strategies.base import STRATEGIES, Strategy

    if isinstance(strategy, str):
        return STRATEGIES.make(strategy, **usual_settings(task, strategy))
    return _of_kind(Strategy, strategy, "strategy", "give one, or the name of an installed one")


def _of_kind(kind: type[T], value: object, what: str, hint: str) -> T:
    """The value, if it is of its kind. Raises ConfigError if not."""
    if isinstance(value, kind):
        return value
    if isinstance(value, type) and kind in value.__mro__:
        hint = f"give an object, such as {value.__name__}()"
    raise ConfigError(f"the {what} is {shown(value)}, which is no {kind.__name__}", hint=hint)
