"""Many problems at once on one engine: ``solve_many`` and ``asolve_many``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Unpack

from rksc_tot.api.outcomes import RUN_BUDGET, Outcome, Problem, Tally, has_check, sentence_of
from rksc_tot.api.setup import Setup, budget_of
from rksc_tot.api.solve import SolveOptions, check_options, search_for
from rksc_tot.api.sync import InThread, LoopThread
from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import CacheError, ConfigError, ContextOverflow, EngineError, RkscTotError
from rksc_tot.core.plugins.user_code import calling_user_code, named, said, shown
from rksc_tot.core.task import Task
from rksc_tot.engine.base import Engine
from rksc_tot.search.limits import Limits
from rksc_tot.search.task_calls import validated

PATIENCE = 4  # searches in a row that end with an engine error, at least, before the engine counts as broken
LONGEST = 80  # characters of a problem before a warning
_PROBLEM: ContextVar[str] = ContextVar("problem")  # of the search that is running


class AsyncOutcomes:
    """The outcomes of a run in an ``async for`` loop, as they finish; ``tally`` is what it has come to.

    A search starts when another one's outcome is taken, so a slow loop makes the run wait, and no more problems are read
    than ``concurrency`` beyond those handed out. After a ``break``, ``await run.aclose()`` stops what runs, and only then is
    ``tally`` the last word.
    """

    def __init__(self, setup: Setup, problems: Any, concurrency: int, run_budget: Budget) -> None:
        self._setup, self._problems, self._concurrency, self._budget = setup, problems, concurrency, run_budget
        self.tally = Tally(checks=has_check(setup.task), total=_length(problems))
        self._tasks: set[asyncio.Task[Any]] = set()
        self._begun = self._closed = False

    async def __aiter__(self) -> AsyncIterator[Outcome]:
        self.check_new()
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
                    if limits.stopped:  # then a source that has nothing to give at the moment is not waited for
                        feeder.cancel()
                    if outcome.error is not None and unlucky >= max(PATIENCE, self._concurrency):
                        raise outcome.error
            ended_by = None if feeder.cancelled() else feeder.result() or "finished"
            if isinstance(ended_by, BaseException):
                raise ended_by
            if not self._closed:
                self.tally.stopped = limits.stopped or ended_by
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            self.tally.stopped = sentence_of(error)
            raise
        finally:
            self.tally.stopped = self.tally.stopped or "cancelled"
            await self.aclose()

    def check_new(self) -> None:
        """Raise ConfigError if somebody has begun to go through the outcomes."""
        if self._begun:
            raise ConfigError("these outcomes have been gone through", hint="start another run")

    async def aclose(self) -> None:
        """Cancel what runs, and wait until it has ended; nothing starts after it. A second time is no error."""
        self._closed = True
        if not self._begun:
            self._begun, self.tally.stopped = True, "cancelled"
        tasks = {task for task in self._tasks if not task.done()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _feed(
        self, limits: Limits, ended: asyncio.Queue[Any], ahead: asyncio.Semaphore
    ) -> str | BaseException | None:
        """Start searches as long as there are problems; returns the budget or the error that kept it from starting more."""
        given = self._problems
        source = InThread(given) if not isinstance(given, AsyncIterable) else None
        try:
            problems = aiter(source or given)
            while True:
                await ahead.acquire()
                try:
                    async with asyncio.timeout(limits.seconds_left) as waiting:
                        problem = await anext(problems)
                except StopAsyncIteration:
                    self.tally.total = self.tally.started
                    return None
                except TimeoutError as error:
                    return limits.reason("seconds") if waiting.expired() else error
                if reason := limits.stopped or limits.used_up():
                    return reason
                self.tally.started += 1
                if self.tally.total is not None and self.tally.total < self.tally.started:  # it said less than it has
                    self.tally.total = None
                if not isinstance(problem, Problem):
                    problem = Problem(problem, self.tally.started)
                self._spawn(self._search(problem, limits), ended)
        except (asyncio.CancelledError, GeneratorExit) as error:  # which have a meaning here that is not theirs
            if self._closed or limits.stopped:
                raise
            return RkscTotError(f"the problems raised {named(error)}", hint="catch it where they come from")
        except BaseException as error:  # SystemExit, too: not before the outcomes of what runs
            return error
        finally:
            if source is not None:
                source.close()

    def _spawn(self, work: Coroutine[Any, Any, Any], ended: asyncio.Queue[asyncio.Task[Any]]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended.put_nowait)
        return task

    async def _search(self, problem: Problem, limits: Limits) -> Outcome:
        _PROBLEM.set(" ".join(said(problem.problem).split())[:LONGEST])
        about: dict[str, Any] = {"id": problem.id, "problem": problem.problem}
        refused = True
        try:
            with calling_user_code("the search", Exception):
                valid = validated(self._setup.task, problem.problem)
                refused = False
                result = await search_for(self._setup, problem.problem, valid, run=limits)
        except Exception as error:  # a bad problem, task or plug-in must not end the run
            return Outcome(**about, failure=sentence_of(error), refused=refused, error=error)
        except asyncio.CancelledError as error:
            if self._closed:
                raise
            cancelled = RkscTotError("the search was cancelled, and not by the run", hint="see its task and plug-ins")
            cancelled.result = getattr(error, "result", None)
            return Outcome(**about, failure=sentence_of(cancelled), error=cancelled)
        return Outcome(**about, result=result)


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
        self._run.check_new()  # whose loop would be another one
        outcomes = aiter(self._run)

        async def following() -> Outcome | None:
            return await anext(outcomes, None)

        with LoopThread("rksc_tot.api.solve_many", self._run.aclose) as loop:
            while (outcome := loop.wait(following())) is not None:
                yield outcome


def asolve_many(
    task: Task | str,
    problems: Iterable[Any] | AsyncIterable[Any],
    *,
    engine: Engine,
    concurrency: int = 8,
    run_budget: Budget | None = None,
    **options: Unpack[SolveOptions],
) -> AsyncOutcomes:
    """Search for solutions of many problems at once: ``async for outcome in (run := asolve_many(…)): …``.

    What a search finds does not depend on those beside it, seconds, ``kv_bytes`` and ``run_budget`` apart, where its
    ``numerics["batch_invariant"]`` is true; else floating-point near ties may fall otherwise. Every search has the same seed:
    a problem that is given twice is solved twice in the same way. A problem that fails is an outcome, and the run goes on. It
    ends with the engine's error where the engine is broken for everybody: where as many
    searches in a row as run at once, and at least four, ended with an EngineError that is not about the size of one
    problem, and none came through in between.

    Parameters
    ----------
    task, engine, strategy, verifier, budget, seed, rksc, sampling
        As in :func:`~rksc_tot.solve.asolve`, of each search.
    problems : iterable or async iterable
        Whatever ``task.validate`` takes, or a :class:`Problem` where it has an id. Ids are handed through; whether one repeats
        is not looked at. Problems are read as searches start, so they may be endless; an error in reading them is raised by
        the loop, after the outcomes of the searches that run. A plain iterable is read in a thread of its own, and may block.
    concurrency : int
        Searches in flight, at least 1.
    run_budget : Budget
        Hard limits of all searches together, from the first outcome asked for; shared by whoever comes first. Where one is
        reached, running searches return their best so far, and no other starts: ``run.tally`` counts them, and says why.

    Raises
    ------
    ConfigError
        If an argument is of the wrong kind, or there is no such option. The loop raises it when it is gone through a second time.
    """
    check_options("asolve_many", options)
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
    **options: Unpack[SolveOptions],
) -> Outcomes:
    """:func:`asolve_many` for code that is not async: ``for outcome in (run := solve_many(…)): …``.

    The searches work in another thread.
    """
    check_options("solve_many", options)
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


def _length(problems: Any) -> int | None:
    """How many problems there are, where that is known before they are read."""
    if isinstance(problems, Sized):
        with suppress(Exception):  # a user's __len__
            return len(problems)
    return None


def _blames_engine(error: Exception | None) -> bool:
    """Whether an error may mean that no search can go on."""
    return isinstance(error, EngineError) and not isinstance(error, ContextOverflow | CacheError)
