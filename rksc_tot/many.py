"""Many problems at once on one engine: ``solve_many`` and ``asolve_many``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sized
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import Any, Unpack

from rksc_tot.budget import Budget
from rksc_tot.engine.base import Engine
from rksc_tot.errors import CacheError, ConfigError, ContextOverflow, EngineError
from rksc_tot.guard import guarded, said, shown
from rksc_tot.outcome import RUN_BUDGET, Outcome, Problem, Tally, sentence_of
from rksc_tot.running import LoopThread
from rksc_tot.search.limits import Limits
from rksc_tot.setup import Setup, budget_of
from rksc_tot.solve import Options, search_for
from rksc_tot.task import Task

PATIENCE = 4  # searches in a row that end with an engine error, at least, before the engine counts as broken
LONGEST = 80  # characters of a problem before a warning
_PROBLEM: ContextVar[str] = ContextVar("problem")  # of the search that is running


class AsyncOutcomes:
    """The outcomes of a run in an ``async for`` loop, as they finish; ``tally`` is what it has come to.

    A search starts when another one's outcome is taken, so a slow loop makes the run wait, and no more problems are read
    than ``concurrency`` beyond those handed out. After a ``break``, ``await run.aclose()`` stops what runs.
    """

    def __init__(self, setup: Setup, problems: Any, concurrency: int, run_budget: Budget) -> None:
        self._setup, self._problems, self._concurrency, self._budget = setup, problems, concurrency, run_budget
        self.tally = Tally(len(problems) if isinstance(problems, Sized) else None)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._begun = False

    async def __aiter__(self) -> AsyncIterator[Outcome]:
        if self._begun:
            raise ConfigError("these outcomes have been gone through", hint="start another run")
        self._begun = True
        limits = Limits(self._budget, self.tally.spent, name=RUN_BUDGET)
        ended: asyncio.Queue[asyncio.Task[Any]] = asyncio.Queue()
        ahead = asyncio.Semaphore(self._concurrency)
        feeder = self._spawn(self._feed(limits, ended, ahead), ended)
        unlucky = 0
        try:
            with warnings_name_their_problem():
                while self._tasks:
                    task = await ended.get()
                    self._tasks.discard(task)
                    if task is feeder or task.cancelled():
                        continue
                    outcome: Outcome = task.result()
                    ahead.release()
                    self.tally.add(outcome)
                    unlucky = 0 if outcome.result is not None else unlucky + _blames_engine(outcome.error)
                    yield outcome
                    if outcome.error is not None and unlucky >= max(PATIENCE, self._concurrency):
                        raise outcome.error
            if not feeder.cancelled():
                self.tally.stopped = feeder.result() or limits.stopped or "finished"
        except Exception as error:
            self.tally.stopped = sentence_of(error)
            raise
        finally:
            self.tally.stopped = self.tally.stopped or "cancelled"
            await self.aclose()

    async def aclose(self) -> None:
        """Cancel what runs, and wait until it has ended; a second time is no error."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _feed(self, limits: Limits, ended: asyncio.Queue[Any], ahead: asyncio.Semaphore) -> str | None:
        """Start searches as long as there are problems; returns which budget kept it from starting more."""
        async with aclosing(_numbered(self._problems)) as problems:
            while True:
                await ahead.acquire()
                problem = await anext(problems, None)
                if problem is None:
                    return None
                if reason := limits.stopped or limits.used_up():
                    return reason
                self.tally.started += 1
                self._spawn(self._search(problem, limits), ended)

    def _spawn(self, work: Coroutine[Any, Any, Any], ended: asyncio.Queue[asyncio.Task[Any]]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended.put_nowait)
        return task

    async def _search(self, problem: Problem, limits: Limits) -> Outcome:
        _PROBLEM.set(" ".join(said(problem.problem).split())[:LONGEST])
        try:
            with guarded("the search", Exception):
                result = await search_for(self._setup, problem.problem, run=limits)
        except Exception as error:  # a bad problem, task or plug-in must not end the run
            return Outcome(id=problem.id, problem=problem.problem, failure=sentence_of(error), error=error)
        return Outcome(id=problem.id, problem=problem.problem, result=result)


class Outcomes:
    """The outcomes of a run in a plain ``for`` loop, as they finish; ``tally`` is what it has come to.

    The searches work in a thread, also while the loop's body does. Leaving the loop early cancels them.
    """

    def __init__(self, run: AsyncOutcomes) -> None:
        self._run = run

    @property
    def tally(self) -> Tally:
        """What the run has come to so far."""
        return self._run.tally

    def __iter__(self) -> Iterator[Outcome]:
        outcomes = aiter(self._run)

        async def following() -> Outcome | None:
            return await anext(outcomes, None)

        with LoopThread("rksc_tot.many") as loop:
            try:
                while (outcome := loop.wait(following())) is not None:
                    yield outcome
            finally:
                loop.wait(self._run.aclose())


def asolve_many(
    task: Task | str,
    problems: Iterable[Any] | AsyncIterable[Any],
    *,
    engine: Engine,
    concurrency: int = 8,
    run_budget: Budget | None = None,
    **options: Unpack[Options],
) -> AsyncOutcomes:
    """Search for solutions of many problems at once: ``async for outcome in (run := asolve_many(…)): …``.

    What a search finds does not depend on those beside it, near ties, seconds and ``run_budget`` apart. A problem that fails
    is an outcome, and the run goes on. It ends with the engine's error where the engine is broken for everybody: where as many
    searches in a row as run at once, and at least four, ended with an EngineError that is not about the size of one
    problem, and none came through in between.

    Parameters
    ----------
    task, engine, strategy, verifier, budget, seed, rksc
        As in :func:`~rksc_tot.solve.asolve`, of each search.
    problems : iterable or async iterable
        Whatever ``task.validate`` takes, or a :class:`Problem` where it has an id. It is read as searches start, so it may
        be endless; an error it raises is raised by the loop, after the outcomes of the searches that run.
    concurrency : int
        Searches in flight, at least 1.
    run_budget : Budget
        Hard limits of all searches together, from the first outcome asked for; shared by whoever comes first. Where one is
        reached, running searches return their best so far, and no other starts: ``run.tally`` counts them, and says why.

    Raises
    ------
    ConfigError
        If an argument is of the wrong kind. The loop raises it when it is gone through a second time.
    """
    if isinstance(problems, str | bytes | Mapping) or not isinstance(problems, Iterable | AsyncIterable):
        raise ConfigError(
            f"the problems are {shown(problems)}", hint="give a list of problems, or whatever yields them"
        )
    given: object = concurrency
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ConfigError(f"concurrency is {shown(concurrency)}", hint="use a whole number, at least 1")
    run_budget = budget_of(run_budget)
    if run_budget.kv_bytes is not None:
        raise ConfigError(
            "the KV of a whole run is the engine's",
            hint="set its kv_budget (--kv-budget), and kv_bytes for each search",
        )
    return AsyncOutcomes(Setup.of(task, engine, **options), problems, concurrency, run_budget)


def solve_many(
    task: Task | str,
    problems: Iterable[Any] | AsyncIterable[Any],
    *,
    engine: Engine,
    concurrency: int = 8,
    run_budget: Budget | None = None,
    **options: Unpack[Options],
) -> Outcomes:
    """:func:`asolve_many` for code that is not async: ``for outcome in (run := solve_many(…)): …``.

    ``problems`` are read in another thread.
    """
    return Outcomes(
        asolve_many(task, problems, engine=engine, concurrency=concurrency, run_budget=run_budget, **options)
    )


@contextmanager
def warnings_name_their_problem() -> Iterator[None]:
    """Begin each warning of a search with its problem: those of many searches come out together."""

    def name_it(record: logging.LogRecord) -> bool:
        problem = _PROBLEM.get(None)
        if problem is not None and not hasattr(record, "problem"):  # another run may have been here
            record.msg, record.args, record.problem = f"{problem}: {record.getMessage()}", (), problem
        return True

    log = logging.getLogger("rksc_tot")
    log.addFilter(name_it)
    try:
        yield
    finally:
        log.removeFilter(name_it)


async def _numbered(problems: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[Problem, None]:
    """The problems, each with an id."""
    at = 0
    if isinstance(problems, AsyncIterable):
        async for problem in problems:
            at += 1
            yield problem if isinstance(problem, Problem) else Problem(problem, at)
        return
    for at, problem in enumerate(problems, 1):
        yield problem if isinstance(problem, Problem) else Problem(problem, at)


def _blames_engine(error: Exception | None) -> bool:
    """Whether an error may mean that no search can go on."""
    return isinstance(error, EngineError) and not isinstance(error, ContextOverflow | CacheError)
