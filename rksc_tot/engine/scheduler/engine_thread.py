"""The thread that runs the scheduler, and the inbox in which coroutines leave changes for it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from rksc_tot.core.errors import EngineError
from rksc_tot.engine.base import CLOSED
from rksc_tot.engine.jobs.job import Job
from rksc_tot.engine.model.process_tuning import allow_forks, idle_threads
from rksc_tot.engine.scheduler.scheduler import Scheduler

FORKED = "the engine was made in another process, from which this one was forked"
QUIET = 4  # rounds of the event loop in which coroutines may add requests before a pass
J = TypeVar("J", bound=Job)
T = TypeVar("T")


class EngineThread:
    """Runs a scheduler's steps for coroutines of any event loops and threads. A pass never blocks an event loop.

    The *books* are the scheduler's jobs, its prefix tree and its arena. Callers leave changes to the books in an inbox. The next
    thread that takes the books makes these changes first.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.closed = False
        self._lock = threading.Lock()  # guards jobs, tree and arena; taken through books()
        self._inbox: deque[Callable[[], None]] = deque()
        self._steps: dict[asyncio.AbstractEventLoop, asyncio.Future[None]] = {}  # in flight
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="rksc-engine")
        self._idle_threads = idle_threads()
        self._process = os.getpid()
        allow_forks()

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the process of the engine. The engine thread does not run here."""
        return os.getpid() != self._process

    def check_usable(self) -> None:
        """Raise EngineError if the engine is closed or belongs to another process."""
        self._check_process()
        if self.closed:
            raise EngineError(CLOSED, hint="load it again")

    def later(self, act: Callable[[], None]) -> None:
        """Put a change to the books into the inbox; it is made before the next step."""
        self._inbox.append(act)

    @contextmanager
    def books(self) -> Iterator[None]:
        """Exclusive access to the books, after the changes in the inbox are made."""
        self._check_process()
        with self._lock:
            while self._inbox:
                self._inbox.popleft()()
            yield

    def empty_inbox(self) -> None:
        """Make the changes in the inbox now."""
        with self.books():
            pass

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run ``work`` in the engine thread, with exclusive access to the books. Raises EngineError if the engine is closed."""

        def alone() -> T:
            with self.books():
                return work()

        try:
            return self._worker.submit(alone)
        except RuntimeError:
            raise EngineError(CLOSED) from None

    async def run(self, make: Callable[[], list[J]]) -> list[J]:
        """Make jobs and run them without blocking the event loop. The first error is raised after all jobs are closed."""
        jobs: list[J] = []
        made: list[Exception | None] = []  # the error of making the jobs or None, after the attempt

        def begin() -> None:
            try:
                jobs.extend(make())
            except Exception as error:
                made.append(error)
                return
            for job in jobs:
                self.scheduler.add(job)
            made.append(None)

        def abandon() -> None:
            self.scheduler.fail([job for job in jobs if not job.ended], EngineError("the request was cancelled"))
            for job in jobs:
                job.give_back()

        self.later(begin)
        try:
            while not made or not all(job.ended for job in jobs):
                self.check_usable()
                await self._turn()
            failed = [error for error in (*made, *(job.error for job in jobs)) if error is not None]
            if failed:
                raise failed[0]
        except BaseException:
            self.later(abandon)
            raise
        return jobs

    def close(self) -> None:
        """Stop, and end all jobs."""
        self.closed = True
        self._worker.shutdown(wait=True)
        with self.books():
            self.scheduler.fail(self.scheduler.jobs, EngineError(CLOSED))

    def _check_process(self) -> None:
        if self.forked:
            raise EngineError(FORKED, hint="make an engine in this process")

    async def _turn(self) -> None:
        """Wait for one step. All coroutines of this event loop that have made a request share the step."""
        loop = asyncio.get_running_loop()
        for _ in range(QUIET):  # let every coroutine that is ready add its work to the pass
            if loop in self._steps:
                break
            await asyncio.sleep(0)
        step = self._steps.get(loop)
        if step is None:
            self._steps = {other: step for other, step in self._steps.items() if not other.is_closed()}
            self._idle_threads()
            step = self._steps[loop] = asyncio.wrap_future(self.submit(self.scheduler.step))
            step.add_done_callback(lambda _: self._steps.pop(loop, None))
        await asyncio.wait([step])
        if not step.cancelled() and (error := step.exception()):
            raise EngineError(f"the engine failed: {type(error).__name__}: {error}") from error
