"""Many searches at once on one engine: ``solve_many`` and ``asolve_many``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Unpack

from rksc_tot.api.outcomes import RUN_BUDGET, Outcome, Tally, has_check, sentence_of
from rksc_tot.api.setup import Setup, budget_of
from rksc_tot.api.solve import SolveOptions, check_options, search_for
from rksc_tot.api.sync import InThread, LoopThread
from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import CacheError, ConfigError, ContextOverflow, EngineError, RkscTotError
from rksc_tot.core.plugins.user_code import awaiting_user_code, error_text, shown, text_of
from rksc_tot.core.task import Problem, Task
from rksc_tot.engine.base import Engine
from rksc_tot.search.limits import Limits
from rksc_tot.search.task_calls import validated

PATIENCE = 4  # a run ends after max(PATIENCE, concurrency) consecutive engine errors
LONGEST = 80  # characters of the problem that a warning begins with
_PROBLEM: ContextVar[str] = ContextVar("problem")  # of the current search


class AsyncOutcomes:
    """The outcomes of a run for an ``async for`` loop, in the order in which searches finish.

    A new search starts when the loop takes an outcome. A slow loop therefore slows the run down, and at most ``concurrency``
    problems are read ahead. After a ``break``, ``await run.aclose()`` cancels the running searches; ``tally`` is final after
    that.
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
        engine_errors = 0
        try:
            with warnings_with_problem():
                while self._tasks:
                    task = await ended.get()
                    self._tasks.discard(task)
                    if task is feeder or task.cancelled():
                        continue
                    outcome: Outcome = task.result()
                    ahead.release()
                    self.tally.add(outcome)
                    engine_errors = 0 if outcome.result is not None else engine_errors + _blames_engine(outcome.error)
                    yield outcome
                    if limits.stopped:  # no search will start, so do not wait for the next problem
                        feeder.cancel()
                    if outcome.error is not None and engine_errors >= max(PATIENCE, self._concurrency):
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
        """Raise ConfigError if a loop over the outcomes has begun."""
        if self._begun:
            raise ConfigError("the outcomes of this run were already read", hint="call solve_many again")

    async def aclose(self) -> None:
        """Cancel all running searches and wait until they have ended. A second call does nothing."""
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
        """Start a search for each problem. Returns why it stopped early: a budget, or the error of the source; else None."""
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
                if (
                    self.tally.total is not None and self.tally.total < self.tally.started
                ):  # len() of the source was too small
                    self.tally.total = None
                if not isinstance(problem, Problem):
                    problem = Problem(problem, self.tally.started)
                self._spawn(self._search(problem, limits), ended)
        except (asyncio.CancelledError, GeneratorExit) as error:  # raised by the source, unless the run is ending
            if self._closed or limits.stopped:
                raise
            return RkscTotError(f"the problems raised {error_text(error)}", hint="catch it in the iterable of problems")
        except BaseException as error:  # SystemExit too: raised after the running searches have ended
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
        _PROBLEM.set(" ".join(text_of(problem.problem).split())[:LONGEST])
        about: dict[str, Any] = {"id": problem.id, "problem": problem.problem}
        refused = True
        try:
            with awaiting_user_code("the search", Exception):
                valid = validated(self._setup.task, problem.problem)
                refused = False
                result = await search_for(self._setup, problem.problem, valid, run=limits)
        except Exception as error:  # a bad problem, task or plug-in must not end the run
            return Outcome(**about, failure=sentence_of(error), refused=refused, error=error)
        except asyncio.CancelledError as error:
            if self._closed:
                raise
            cancelled = RkscTotError(
                "the search was cancelled from outside the run", hint="look for a cancel() in the task or a plug-in"
            )
            cancelled.result = getattr(error, "result", None)
            return Outcome(**about, failure=sentence_of(cancelled), error=cancelled)
        return Outcome(**about, result=result)


class Outcomes:
    """The outcomes of a run for a plain ``for`` loop, in the order in which searches finish.

    The searches run in a thread, also during the body of the loop. Leaving the loop early cancels them.
    """

    def __init__(self, run: AsyncOutcomes) -> None:
        self._run = run

    @property
    def tally(self) -> Tally:
        """Totals of the run so far."""
        return self._run.tally

    def __iter__(self) -> Iterator[Outcome]:
        self._run.check_new()
        outcomes = aiter(self._run)

        async def next_outcome() -> Outcome | None:
            return await anext(outcomes, None)

        with LoopThread("rksc_tot.api.solve_many", self._run.aclose) as loop:
            while (outcome := loop.wait(next_outcome())) is not None:
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

    If ``engine.numerics["batch_invariant"]`` is True, the result of a search does not depend on concurrent searches, except
    through a budget in seconds, ``kv_bytes`` or ``run_budget``. Otherwise floating-point near ties may be decided differently.

    Every search has the same seed, so a repeated problem has the same result twice. An error in one search is the outcome of
    that problem, and the run goes on. The run raises an engine error if max(4, ``concurrency``) consecutive searches ended with
    an EngineError; a context overflow or a full KV budget does not count.

    Parameters
    ----------
    task, engine, strategy, verifier, budget, seed, rksc, sampling
        As in :func:`~rksc_tot.solve.asolve`, of each search.
    problems : iterable or async iterable
        Values that ``task.validate`` accepts, or :class:`Problem` objects with ids. Ids need not be unique. Problems are read as
        searches start, so the iterable may be endless. An error of the iterable is raised after the outcomes of the running
        searches. A plain iterable is read in a thread of its own, and may block.
    concurrency : int
        Number of searches that run at the same time, at least 1.
    run_budget : Budget
        Hard limits for all searches together; seconds count from the start of the loop. When a limit is reached, running searches
        return their best result so far and no other search starts. ``run.tally`` counts these searches and has the reason.

    Raises
    ------
    ConfigError
        If an argument has the wrong type, or an option is unknown. A second loop over the same run raises it too.
    """
    check_options("asolve_many", options)
    if isinstance(problems, str | bytes | Mapping) or not isinstance(problems, Iterable | AsyncIterable):
        raise ConfigError(f"the problems are {shown(problems)}", hint="give a list or another iterable of problems")
    given: object = concurrency
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ConfigError(f"concurrency is {shown(concurrency)}", hint="use a whole number of at least 1")
    run_budget = budget_of(run_budget)
    if run_budget.kv_bytes is not None:
        raise ConfigError(
            "run_budget has kv_bytes, which a run does not limit",
            hint="set kv_budget of the engine (--kv-budget), or kv_bytes in budget for each search",
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

    The searches run in another thread.
    """
    check_options("solve_many", options)
    return Outcomes(
        asolve_many(task, problems, engine=engine, concurrency=concurrency, run_budget=run_budget, **options)
    )


@contextmanager
def warnings_with_problem() -> Iterator[None]:
    """Prefix each warning with the problem of its search, as warnings of many searches are mixed in one log."""

    def add_problem(record: logging.LogRecord) -> bool:
        problem = _PROBLEM.get(None)
        if problem is not None and not hasattr(record, "problem"):  # a run that contains this one may have added it
            record.msg, record.args, record.problem = f"{problem}: {record.getMessage()}", (), problem
        return True

    log = logging.getLogger("rksc_tot")
    log.addFilter(add_problem)
    try:
        yield
    finally:
        log.removeFilter(add_problem)


def _length(problems: Any) -> int | None:
    """Number of problems, None if ``problems`` has no length."""
    if isinstance(problems, Sized):
        with suppress(Exception):  # a user's __len__
            return len(problems)
    return None


def _blames_engine(error: Exception | None) -> bool:
    """Whether an error is the engine's and not about the size of one problem."""
    return isinstance(error, EngineError) and not isinstance(error, ContextOverflow | CacheError)
