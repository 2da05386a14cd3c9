"""Checks the arguments of a search, looks up names, and fills in the task's settings."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError, TaskError
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, shown
from rksc_tot.core.task import Path, Task
from rksc_tot.core.task.task_settings import setting_faults
from rksc_tot.engine.base import CompressingEngine, Engine, Sampling
from rksc_tot.search.approximate.fingerprint import weights_of
from rksc_tot.search.approximate.rksc import RKSC
from rksc_tot.search.task_calls import HINT
from rksc_tot.search.thoughts.thought_generator import sampling_of

if TYPE_CHECKING:
    from rksc_tot.strategies.base import Strategy
    from rksc_tot.verifiers.base import Verifier

T = TypeVar("T")


@dataclass(frozen=True)
class Setup:
    """The arguments of a search without its problem. The fields are the parameters of :func:`~rksc_tot.solve.asolve`."""

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
        """Check the arguments and look up names.

        Raises
        ------
        ConfigError
            If an argument has the wrong type, or a name is not installed.
        """
        task = _task(task)
        engine = _of_kind(Engine, engine, "engine", "load_engine() returns one")  # type: ignore[type-abstract]
        _check_compression(engine, task)
        chosen = None if verifier is None else verifier_of(verifier)
        if chosen is not None:
            chosen.check(engine, task)
        return cls(
            task,
            engine,
            _strategy(strategy, task),
            chosen,
            budget_of(budget),
            seed,
            None if rksc is None else _of_kind(RKSC, rksc, "rksc", "such as RKSC(calibration='embedded')").loaded(),
            sampling_for(task, sampling),
        )

    def verifier_for(self, problem: Any) -> Verifier:
        """The verifier for a validated problem: the given one, else the default one for the task."""
        return self.verifier or verifier_of(default_verifier(self.task, problem))


def budget_of(budget: Budget | None) -> Budget:
    """The budget; None means one without limits. Raises ConfigError if it is not a Budget."""
    return Budget() if budget is None else _of_kind(Budget, budget, "budget", "such as Budget(tokens=1000)")


def sampling_for(task: Task, sampling: Sampling | None) -> Sampling:
    """The fields that are set in ``sampling``, and the task's values for all others. Raises ConfigError if one is invalid."""
    given = Sampling() if sampling is None else _of_kind(Sampling, sampling, "sampling", "such as Sampling(top_p=0.9)")
    return sampling_of(task, given.model_dump(exclude_unset=True))


def strategy_settings_of(task: Task, strategy: str) -> dict[str, Any]:
    """The task's settings for the strategy of that name.

    Raises
    ------
    TaskError
        If ``task.strategy_settings`` is not a mapping of mappings.
    """
    for wrong in (wrong for name, wrong in setting_faults(task) if name == "strategy_settings"):
        raise TaskError(wrong, hint=HINT)
    return dict(task.strategy_settings.get(strategy, {}))


def default_verifier(task: Task, problem: Any) -> str:
    """The name of the default verifier: ``lm_value`` if the task has a question, else ``likelihood``.

    A question that raises at the root counts as a question, as searches ask only after a thought.
    """
    try:
        with calling_user_code("question"):
            return "likelihood" if task.question(problem, Path()) is None else "lm_value"
    except UserCodeError:
        return "lm_value"


def verifier_of(verifier: Verifier | str) -> Verifier:
    """The verifier, or the installed one of that name. Raises ConfigError if there is none."""
    from rksc_tot.verifiers.base import Verifier
    from rksc_tot.verifiers.registry import VERIFIERS

    if isinstance(verifier, str):
        return VERIFIERS.make(verifier)
    is_function = callable(verifier) and not isinstance(verifier, type)
    hint = "put @verifier above the function" if is_function else "give a Verifier or the name of an installed one"
    return _of_kind(Verifier, verifier, "verifier", hint)


def _check_compression(engine: Engine, task: Task) -> None:
    """Raise ConfigError if the engine's compression policy was fitted to another model or task."""
    if isinstance(engine, CompressingEngine) and engine.compression is not None:
        engine.compression.check_task(task.name or type(task).__name__)
        engine.compression.check_model(engine.name, engine.layers, lambda: weights_of(engine))


def _task(task: Task | str) -> Task:
    if isinstance(task, str):
        from rksc_tot.tasks import load_task

        return load_task(task)
    return _of_kind(Task, task, "task", "give an object of a Task class, or use function_task")


def _strategy(strategy: Strategy | str, task: Task) -> Strategy:
    from rksc_tot.strategies.base import Strategy
    from rksc_tot.strategies.registry import STRATEGIES

    if isinstance(strategy, str):
        return STRATEGIES.make(strategy, **strategy_settings_of(task, strategy))
    hint = "give an object of a class derived from rksc_tot.Strategy, or the name of an installed one"
    chosen = _of_kind(Strategy, strategy, "strategy", hint)
    if not inspect.iscoroutinefunction(chosen.run):
        raise ConfigError(f"{type(chosen).__name__}.run is not async", hint="write: async def run(self, search)")
    return chosen


def _of_kind(kind: type[T], value: object, what: str, hint: str) -> T:
    """The value, checked to be a ``kind``. Raises ConfigError if it is not."""
    if isinstance(value, kind):
        return value
    if isinstance(value, type) and kind in value.__mro__:
        hint = f"give an object, such as {value.__name__}()"
    raise ConfigError(f"the {what} is {shown(value)}, not of type {kind.__name__}", hint=hint)
