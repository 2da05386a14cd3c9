"""One search: ``solve``, ``asolve``, and ``stream`` and ``astream`` with its events."""

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
from rksc_tot.core.plugins.nearest import did_you_mean
from rksc_tot.core.plugins.user_code import error_text, shown, text_of
from rksc_tot.core.task import Task
from rksc_tot.core.task.problem import without_id
from rksc_tot.core.version import __version__
from rksc_tot.engine.base import Engine, Sampling
from rksc_tot.search import Search
from rksc_tot.search.approximate.rksc import RKSC
from rksc_tot.search.limits import Limits
from rksc_tot.search.task_calls import read_verdict, validated

if TYPE_CHECKING:
    from rksc_tot.strategies.base import Strategy
    from rksc_tot.verifiers.base import Verifier

REASONS = 10  # most reasons of rejections in a result
_NUMBERS = itertools.count(1)  # of searches, for log messages
_log = logging.getLogger("rksc_tot")


class SolveOptions(TypedDict, total=False):
    """The options of :func:`asolve` that all front doors take: solve, stream, astream, solve_many and asolve_many."""

    strategy: Strategy | str
    verifier: Verifier | str | None
    budget: Budget | None
    seed: int
    rksc: RKSC | None
    sampling: Sampling | None


def check_options(function: str, options: Iterable[str]) -> None:
    """Check the names of the options that the public ``function`` was called with.

    Raises
    ------
    ConfigError
        If a name is unknown. The message has the function, the name and the known options.
    """
    known = SolveOptions.__annotations__
    for name in options:
        if name == "on_event":
            raise ConfigError(f"{function} has no {name!r}", hint="solve and asolve have it")
        if name not in known:
            raise ConfigError(
                f"{function} has no option {name!r}", hint=f"{did_you_mean(name, known)}there are {', '.join(known)}"
            )


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
        A problem that ``task.validate`` accepts; its id, if it is a :class:`~rksc_tot.Problem`, is left out.
    engine : Engine
        The model. It may serve several searches at once.
    strategy : Strategy or str
        A strategy, or the name of an installed one. A strategy given by name gets its settings from ``task.strategy_settings``.
    verifier : Verifier or str, optional
        A verifier, or the name of an installed one. By default ``lm_value`` if the task has a question, else ``likelihood``,
        which needs no forward pass.
    budget : Budget, optional
        Hard limits. When one is reached, the best result so far is returned and ``stopped`` names the limit.
    seed : int
        Seed of every random stream.
    rksc : RKSC, optional
        Which approximations are on. By default none is.
    sampling : Sampling, optional
        How thoughts are sampled. Fields that are not set come from the task. A strategy with a temperature of its own, such as
        ``cot``, keeps it.
    on_event : callable, optional
        Called with each event. It may raise :class:`~rksc_tot.core.budget.BudgetReached` to stop the search.

    Raises
    ------
    ConfigError
        If an argument has the wrong type, or a calibration was made for another engine, task or verifier.
    TaskError
        If the task refuses the problem, or fails at the root or on every thought.
    VerifierError
        If the verifier returns an invalid score, or fails on every thought.
    EngineError
        If the engine fails.
    Exception
        Any other error of ``strategy`` or ``on_event``. Once the search has begun, every exception, a cancellation included, has
        the best result so far in its attribute ``result``.
    """
    setup, problem = Setup.of(task, engine, strategy, verifier, budget, seed, rksc, sampling), without_id(problem)
    return await search_for(setup, problem, validated(setup.task, problem), on_event)


def solve(
    task: Task | str,
    problem: Any,
    *,
    engine: Engine,
    on_event: Callable[[Event], None] | None = None,
    **options: Unpack[SolveOptions],
) -> Result:
    """:func:`asolve` for code that is not async. If an event loop is running (a notebook), it runs in a thread."""
    check_options("solve", options)
    return run_async(asolve(task, problem, engine=engine, on_event=on_event, **options))


def stream(task: Task | str, problem: Any, *, engine: Engine, **options: Unpack[SolveOptions]) -> EventStream[Result]:
    """The events of a search: ``for event in (run := stream(…)): …``, then ``run.result``.

    Parameters and errors are those of :func:`asolve`; errors are raised by the loop.
    """
    check_options("stream", options)
    return EventStream(lambda on_event: asolve(task, problem, engine=engine, on_event=on_event, **options))


def astream(
    task: Task | str, problem: Any, *, engine: Engine, **options: Unpack[SolveOptions]
) -> AsyncEventStream[Result]:
    """The events of a search: ``async for event in (run := astream(…)): …``, then ``run.result``.

    After a ``break``, call ``await run.aclose()`` before ``run.result``.

    Parameters and errors are those of :func:`asolve`; errors are raised by the loop.
    """
    check_options("astream", options)
    return AsyncEventStream(lambda on_event: asolve(task, problem, engine=engine, on_event=on_event, **options))


async def search_for(
    setup: Setup, problem: Any, valid: Any, on_event: Callable[[Event], None] | None = None, run: Limits | None = None
) -> Result:
    """Run one search with checked arguments.

    ``valid``: the validated problem. ``run``: the limits of the run of many searches that this search belongs to.
    """
    task, text = setup.task, text_of(problem if isinstance(problem, str) else valid)  # a task may change ``valid``
    verifier = setup.verifier_for(valid)
    rksc = None if setup.rksc is None else setup.rksc.ready(setup.engine, task, verifier)
    search = Search(
        task, valid, setup.engine, verifier, setup.budget, setup.seed, rksc=rksc, run=run, sampling=setup.sampling
    )
    settings = {
        "task": task.name,
        "strategy": setup.strategy.describe(),
        "verifier": verifier.describe(),
        "sampling": {**setup.sampling.model_dump(), "mode": task.mode},
        **({} if task.thinking is None else {"thinking": task.thinking.describe()}),
        "budget": setup.budget.model_dump(exclude_none=True),
        "seed": setup.seed,
        "rksc": None if rksc is None else rksc.summary(),
    }
    number = next(_NUMBERS)
    _log.debug("search %d starts on %s: %s", number, shown(search.problem), settings)
    try:
        stopped = await _run(search, setup.strategy, on_event)
    except (Exception, asyncio.CancelledError) as error:
        why = f"failed: {error if isinstance(error, RkscTotError) else error_text(error)}"
        if isinstance(error, asyncio.CancelledError):
            why = "cancelled"
        result = _result(search, text, why, settings)
        with contextlib.suppress(AttributeError):  # an exception class may forbid new attributes
            error.result = result  # type: ignore[union-attr]
        _log_end(number, result)
        raise
    result = _result(search, text, stopped, settings)
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
    """Run the strategy and close the search. Returns why the search ended."""
    stopped = "finished"
    try:
        with search.ledger.phase("total"):
            if on_event is not None:
                search.listen(on_event)
            try:
                await strategy.run(search)
            except BudgetReached as reached:
                stopped = str(reached)
            await search.ask_for_answer()
    except BudgetReached as reached:  # raised by on_event
        stopped = str(reached)
    finally:
        search.close()
    return search.conclude(stopped)


def _result(search: Search, problem: str, stopped: str, settings: Mapping[str, Any]) -> Result:
    best = search.best
    answer = search.answer(best) if best.finished else None
    return Result(
        problem=problem,
        answer=answer,
        correct=None if answer is None else _verdict(search, answer),
        best=best.id,
        path=[thought.text for thought in search.path(best)],
        stopped=stopped,
        tree=search.tree,
        ledger=search.ledger,
        rejections=dict(search.rejections.most_common(REASONS)),
        settings=settings,
        numerics={"rksc_tot": __version__, "model": search.engine.name, **search.engine.numerics},
    )


def _verdict(search: Search, answer: str) -> bool | None:
    correct, fault = read_verdict(search.task, search.problem, answer)
    if fault:
        search.warn("check", f"{fault} on {shown(answer)}; the answer counts as unchecked")
    return correct
