"""The front door: ``solve``, ``asolve``, and ``stream`` to watch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Required, TypedDict, TypeVar, Unpack

from pydantic import BaseModel, ConfigDict

from rksc_tot.budget import Budget, BudgetReached
from rksc_tot.engine.base import Engine
from rksc_tot.errors import RkscTotError, TaskError
from rksc_tot.events import Event
from rksc_tot.ledger import Ledger
from rksc_tot.search import Search
from rksc_tot.search.judgement import named, shown
from rksc_tot.streaming import AsyncEventStream, EventStream
from rksc_tot.task import Task
from rksc_tot.tree import ReasoningTree

if TYPE_CHECKING:
    from rksc_tot.strategies.base import Strategy
    from rksc_tot.verifiers.base import Verifier

T = TypeVar("T")


class Result(BaseModel):
    """What a search found.

    ``answer``: of the best complete path, None if there is none. ``correct``: the task's own check of it, None if the task
    cannot tell. ``best``: id of the node the answer is read from, or of the best unfinished node. ``path``: its thoughts.
    ``stopped``: ``finished``, or which budget ended the search. ``settings``: strategy, verifier, sampling, seed.
    ``numerics``: what the figures depend on besides (dtype, device, versions).
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)
    problem: str
    answer: str | None
    correct: bool | None
    best: int
    path: list[str]
    stopped: str
    tree: ReasoningTree
    ledger: Ledger
    settings: Mapping[str, Any]
    numerics: Mapping[str, Any]


class Options(TypedDict, total=False):
    """Keyword arguments of :func:`asolve` that :func:`solve`, :func:`stream` and :func:`astream` take as well."""

    engine: Required[Engine]
    strategy: Strategy | str
    verifier: Verifier | str | None
    budget: Budget | None
    seed: int


async def asolve(
    task: Task | str,
    problem: Any,
    *,
    engine: Engine,
    strategy: Strategy | str = "bfs",
    verifier: Verifier | str | None = None,
    budget: Budget | None = None,
    seed: int = 0,
    on_event: Callable[[Event], None] | None = None,
) -> Result:
    """Search for a solution of one problem.

    Parameters
    ----------
    task : Task or str
        A task, or the name of an installed one.
    problem : object
        Whatever ``task.validate`` takes.
    engine : Engine
        The model. It may serve several searches at once.
    strategy : Strategy or str
        How to search, or the name of an installed strategy.
    verifier : Verifier or str, optional
        Who scores thoughts, or the name of an installed verifier. By default ``likelihood``, which costs nothing.
    budget : Budget, optional
        Hard limits; where one is reached, the best so far is returned and ``stopped`` says which it was.
    seed : int
        Of every random draw.
    on_event : callable, optional
        Called with each event as it happens. It may raise :class:`~rksc_tot.budget.BudgetReached` to stop the search.

    Raises
    ------
    TaskError
        If the problem does not fit the task, or the task fails at the root.
    VerifierError
        If the verifier returns something that is no score, or fails on everything. ``error.result`` holds the best so
        far.
    EngineError
        If the engine cannot go on; ``error.result`` likewise, once there is a root.
    """
    task, strategy, verifier = _task(task), _strategy(strategy), _verifier(verifier)
    search = Search(task, _validated(task, problem), engine, verifier, budget, seed)
    stopped = "finished"
    try:
        with search.ledger.phase("total"):
            if on_event is not None:
                search.listen(on_event)
            await strategy.run(search)
    except BudgetReached as reached:
        stopped = str(reached)
    except RkscTotError as error:
        error.result = _result(search, strategy, f"failed: {error}")
        raise
    finally:
        search.close()
    return _result(search, strategy, search.limits.stopped or stopped)


def solve(
    task: Task | str, problem: Any, *, on_event: Callable[[Event], None] | None = None, **options: Unpack[Options]
) -> Result:
    """:func:`asolve` for code that is not async. Where an event loop is running (a notebook), it works in a thread."""
    return run_async(asolve(task, problem, on_event=on_event, **options))


def stream(task: Task | str, problem: Any, **options: Unpack[Options]) -> EventStream[Result]:
    """A search to step through: ``for event in (run := stream(…)): …``, then ``run.result``.

    Parameters and errors are those of :func:`asolve`; errors are raised by the loop.
    """
    return EventStream(lambda on_event: asolve(task, problem, on_event=on_event, **options))


def astream(task: Task | str, problem: Any, **options: Unpack[Options]) -> AsyncEventStream[Result]:
    """A search to step through: ``async for event in (run := astream(…)): …``, then ``run.result``.

    Parameters and errors are those of :func:`asolve`; errors are raised by the loop.
    """
    return AsyncEventStream(lambda on_event: asolve(task, problem, on_event=on_event, **options))


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """The outcome of a coroutine, from code that is not async, whether or not an event loop is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    outcome: list[T] = []
    failure: list[BaseException] = []

    def target() -> None:
        try:
            outcome.append(asyncio.run(work))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=target, name="rksc_tot.solve", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def _result(search: Search, strategy: Strategy, stopped: str) -> Result:
    task, best = search.task, search.best
    answer = search.answer(best) if best.finished else None
    settings = {
        "task": task.name,
        "strategy": {"name": strategy.name, **strategy.model_dump()},
        "verifier": search.verifier.name,
        "sampling": {name: getattr(task, name) for name in ("temperature", "top_k", "top_p", "min_p", "mode")},
        "budget": search.limits.budget.model_dump(exclude_none=True),
        "seed": search.seed,
    }
    return Result(
        problem=str(search.problem),
        answer=answer,
        correct=None if answer is None else _checked(search, answer),
        best=best.id,
        path=[thought.text for thought in search.path(best)],
        stopped=stopped,
        tree=search.tree,
        ledger=search.ledger,
        settings=settings,
        numerics={"model": search.engine.name, **search.engine.numerics},
    )


def _checked(search: Search, answer: str) -> bool | None:
    try:
        correct = search.task.check(search.problem, answer)
    except Exception as error:
        search.warn("check", f"check raised {named(error)} on {shown(answer)}; the result is reported as not checked")
        return None
    return None if correct is None else bool(correct)


def _validated(task: Task, problem: Any) -> Any:
    try:
        return task.validate(problem)
    except RkscTotError:
        raise
    except Exception as error:
        raise TaskError(
            f"{shown(problem)} does not fit the task: {named(error)}", hint="check_task says more"
        ) from error


def _task(task: Task | str) -> Task:
    if isinstance(task, str):
        from rksc_tot.tasks import load_task

        return load_task(task)
    return task


def _strategy(strategy: Strategy | str) -> Strategy:
    if isinstance(strategy, str):
        from rksc_tot.strategies import STRATEGIES

        return STRATEGIES.make(strategy)
    return strategy


def _verifier(verifier: Verifier | str | None) -> Verifier:
    if verifier is None or isinstance(verifier, str):
        from rksc_tot.verifiers import VERIFIERS

        return VERIFIERS.make(verifier or "likelihood")
    return verifier
