"""The front door: ``solve``, ``asolve``, and ``stream`` to watch."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from rksc_tot.api.event_stream import AsyncEventStream, EventStream
from rksc_tot.api.result import Result
from rksc_tot.api.setup import Setup
from rksc_tot.api.sync import run_async
from rksc_tot.core.budget import Budget, BudgetReached
from rksc_tot.core.errors import ConfigError, RkscTotError
from rksc_tot.core.events import Event
from rksc_tot.core.plugins.user_code import named, said, shown
from rksc_tot.core.task import Task
from rksc_tot.core.version import __version__
from rksc_tot.engine.base import Engine, Sampling
from rksc_tot.search import Search
from rksc_tot.search.approximate.settings import RKSC
from rksc_tot.search.limits import Limits
from rksc_tot.search.task_calls import read_verdict, validated

if TYPE_CHECKING:
    from rksc_tot.strategies.base import Strategy
    from rksc_tot.verifiers.base import Verifier

REASONS = 10  # kept in a result
_NUMBERS = itertools.count(1)  # of searches, in log messages only
_log = logging.getLogger("rksc_tot")


class SolveOptions(TypedDict, total=False):
    """What :func:`solve`, :func:`stream` and :func:`astream` hand on to :func:`asolve`."""

    strategy: Strategy | str
    verifier: Verifier | str | None
    budget: Budget | None
    seed: int
    rksc: RKSC | None
    sampling: Sampling | None


def check_options(function: str, options: Iterable[str]) -> None:
    """Refuse what is no option of the public ``function`` that was called.

    Raises
    ------
    ConfigError
        It names the function, the wrong name and the right ones.
    """
    known = SolveOptions.__annotations__
    for name in options:
        if name == "on_event":
            raise ConfigError(f"{function} has no {name!r}", hint="solve and asolve have it")
        if name not in known:
            raise ConfigError(f"{function} has no option {name!r}", hint=f"there are {', '.join(known)}")


async def asolve(
    task: Task | str,
    problem: Any,
    *,
    engine: Engine,
    strategy: Strategy | str = "bfs",
    verifier: Verifier | str | None = None,
    budget: Budget | None = None,
    seed: int = 0,
    rksc: RKSC | None = None,
    sampling: Sampling | None = None,
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
        How to search, or the name of an installed strategy, which has the settings in ``task.usual`` then.
    verifier : Verifier or str, optional
        Who scores thoughts, or the name of an installed verifier. By default ``lm_value`` if the task has a question, else
        ``likelihood``, which costs nothing.
    budget : Budget, optional
        Hard limits; where one is reached, the best so far is returned and ``stopped`` says which it was.
    seed : int
        Of every random draw.
    rksc : RKSC, optional
        What may be approximate. By default nothing is.
    sampling : Sampling, optional
        How thoughts are drawn. Fields that are not given are the task's; a strategy that sets its own temperature, such as
        ``cot``, keeps it.
    on_event : callable, optional
        Called with each event as it happens. It may raise :class:`~rksc_tot.core.budget.BudgetReached` to stop the search.

    Raises
    ------
    ConfigError
        If an argument is of the wrong kind, or a calibration does not hold for the engine, the task or the verifier.
    TaskError
        If the problem does not fit the task, or the task fails at the root or on everything.
    VerifierError
        If the verifier returns something that is no score, or fails on everything.
    EngineError
        If the engine cannot go on.
    Exception
        Whatever else ``strategy`` or ``on_event`` raises. Once there is a root, every exception, a cancellation
        included, has the best so far in its attribute ``result``.
    """
    setup = Setup.of(task, engine, strategy, verifier, budget, seed, rksc, sampling)
    return await search_for(setup, problem, validated(setup.task, problem), on_event)


def solve(
    task: Task | str,
    problem: Any,
    *,
    engine: Engine,
    on_event: Callable[[Event], None] | None = None,
    **options: Unpack[SolveOptions],
) -> Result:
    """:func:`asolve` for code that is not async. Where an event loop is running (a notebook), it works in a thread."""
    check_options("solve", options)
    return run_async(asolve(task, problem, engine=engine, on_event=on_event, **options))


def stream(task: Task | str, problem: Any, *, engine: Engine, **options: Unpack[SolveOptions]) -> EventStream[Result]:
    """A search to step through: ``for event in (run := stream(…)): …``, then ``run.result``.

    Parameters and errors are those of :func:`asolve`; errors are raised by the loop.
    """
    check_options("stream", options)
    return EventStream(lambda on_event: asolve(task, problem, engine=engine, on_event=on_event, **options))


def astream(
    task: Task | str, problem: Any, *, engine: Engine, **options: Unpack[SolveOptions]
) -> AsyncEventStream[Result]:
    """A search to step through: ``async for event in (run := astream(…)): …``, then ``run.result``.

    After a ``break``, ``await run.aclose()`` comes first.

    Parameters and errors are those of :func:`asolve`; errors are raised by the loop.
    """
    check_options("astream", options)
    return AsyncEventStream(lambda on_event: asolve(task, problem, engine=engine, on_event=on_event, **options))


async def search_for(
    setup: Setup, problem: Any, valid: Any, on_event: Callable[[Event], None] | None = None, run: Limits | None = None
) -> Result:
    """:func:`asolve` with its arguments checked.

    ``valid``: the problem in the task's own form; ``run``: the limits of the many searches this is one of.
    """
    task = setup.task
    verifier = setup.judge_of(valid)
    rksc = None if setup.rksc is None else setup.rksc.ready(setup.engine, task, verifier.name)
    search = Search(
        task, valid, setup.engine, verifier, setup.budget, setup.seed, rksc=rksc, run=run, sampling=setup.sampling
    )
    settings = {
        "task": task.name,
        "strategy": setup.strategy.told(),
        "verifier": verifier.told(),
        "sampling": {**setup.sampling.model_dump(), "mode": task.mode},
        "budget": setup.budget.model_dump(exclude_none=True),
        "seed": setup.seed,
        "rksc": None if rksc is None else rksc.summary(),
    }
    number = next(_NUMBERS)
    _log.debug("search %d starts on %s: %s", number, shown(search.problem), settings)
    try:
        stopped = await _run(search, setup.strategy, on_event)
    except (Exception, asyncio.CancelledError) as error:
        why = f"failed: {error if isinstance(error, RkscTotError) else named(error)}"
        if isinstance(error, asyncio.CancelledError):
            why = "cancelled"
        result = _result(search, problem, why, settings)
        with contextlib.suppress(AttributeError):  # an exception class may forbid it
            error.result = result  # type: ignore[union-attr]
        _log_end(number, result)
        raise
    result = _result(search, problem, stopped, settings)
    _log_end(number, result)
    return result


def _log_end(number: int, result: Result) -> None:
    counts = result.ledger.nodes, result.ledger.tokens_sampled, result.ledger.verifier_calls
    _log.debug(
        "search %d ends, %s: %s; %d nodes, %d tokens sampled, %d verifier calls",
        number,
        result.stopped,
        "no answer" if result.answer is None else f"answer {shown(result.answer)}",
        *counts,
    )


async def _run(search: Search, strategy: Strategy, on_event: Callable[[Event], None] | None) -> str:
    """Let the strategy work, and close the search; returns why it ended."""
    stopped = "finished"
    try:
        with search.ledger.phase("total"):
            if on_event is not None:
                search.listen(on_event)
            await strategy.run(search)
    except BudgetReached as reached:
        stopped = str(reached)
    finally:
        search.close()
    return search.conclude(stopped)


def _result(search: Search, given: Any, stopped: str, settings: Mapping[str, Any]) -> Result:
    best = search.best
    answer = search.answer(best) if best.finished else None
    return Result(
        problem=said(given if isinstance(given, str) else search.problem),
        answer=answer,
        correct=None if answer is None else _checked(search, answer),
        best=best.id,
        path=[thought.text for thought in search.path(best)],
        stopped=stopped,
        tree=search.tree,
        ledger=search.ledger,
        rejections=dict(search.rejections.most_common(REASONS)),
        settings=settings,
        numerics={"rksc_tot": __version__, "model": search.engine.name, **search.engine.numerics},
    )


def _checked(search: Search, answer: str) -> bool | None:
    correct, fault = read_verdict(search.task, search.problem, answer)
    if fault:
        search.warn("check", f"{fault} on {shown(answer)}; the result is reported as not checked")
    return correct
