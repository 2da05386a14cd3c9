"""Run coroutines from code that is not async, and read blocking iterables from async code. Ctrl-C ends every wait."""

from __future__ import annotations

import asyncio
import atexit
import queue
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from rksc_tot.core.errors import RkscTotError

T = TypeVar("T")
GRACE = 0.5  # seconds to wait for tasks that ignore their cancellation
AT_EXIT = 5.0  # most seconds that the exit of the program waits for work in a thread
PULSE = 0.1  # most seconds until a waiting main thread handles a signal that another thread received


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its value.

    If an event loop is running (a notebook), the coroutine runs in a thread. Ctrl-C cancels the coroutine;
    KeyboardInterrupt is raised once it has ended, with the ``result`` of the coroutine or of its error as an attribute. A second
    Ctrl-C does not wait. Tasks that ignore their cancellation are abandoned in a daemon thread after half a second.
    """
    if _current_loop() is not None:
        with LoopThread("rksc_tot.solve") as thread:
            return thread.wait(work)
    call = _Call(work)
    try:
        return _run(call.outcome())
    except KeyboardInterrupt as interrupt:
        call.hand_over(interrupt)
        raise


class LoopThread:
    """An event loop in a daemon thread, as a context: ``with LoopThread("name") as thread: thread.wait(work())``.

    The loop runs its tasks between two calls of :meth:`wait` too. When the context or the program ends, ``closing`` is awaited;
    then the remaining tasks are cancelled.

    Attributes
    ----------
    ending : threading.Event
        Set when the context ends. Code that blocks the loop must check it.
    """

    def __init__(self, name: str, closing: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        self.ending = threading.Event()
        self._closing = closing
        self._thread = threading.Thread(target=lambda: run_async(self._serve()), name=name, daemon=True)
        self._ready = threading.Event()
        self._caller = None if _current_loop() is None else asyncio.current_task()
        self._cancelled = 0 if self._caller is None else self._caller.cancelling()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its value. Its error, SystemExit included, is raised in the calling thread.

        Ctrl-C is handled as in :func:`run_async`.
        """
        if not self._thread.is_alive():
            work.close()
            raise RkscTotError("the program is ending", hint="read the outcomes before the program ends")
        call = _Call(work)
        try:
            self._loop.call_soon_threadsafe(call.start)
            self.until(call.ended.wait)
        except BaseException as interrupt:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(call.cancel)
            self.until(call.ended.wait)
            call.hand_over(interrupt)
            raise
        if call.error is not None:
            raise call.error
        return call.value

    def until(self, over: Callable[[float], bool]) -> None:
        """Wait until ``over`` returns True, or the thread has ended.

        The main thread handles a signal that another thread received only when it wakes up, so it waits in short pieces. Under
        ``asyncio.run`` the first Ctrl-C cancels the running task and raises nothing, so each piece checks for a cancellation.

        Parameters
        ----------
        over : callable
            Waits for at most the given number of seconds and returns whether the wait is over.

        Raises
        ------
        KeyboardInterrupt
            If the task that created this object was cancelled.
        """
        while not over(PULSE) and self._thread.is_alive():
            if self._caller is not None and self._caller.cancelling() > self._cancelled:
                self._caller.uncancel()
                raise KeyboardInterrupt

    def __enter__(self) -> LoopThread:
        self._thread.start()
        try:
            self.until(self._ready.wait)
        except BaseException:
            self.ending.set()
            raise
        atexit.register(self._end, AT_EXIT)  # daemon threads stop after the exit handlers
        return self

    def __exit__(self, *_: object) -> None:
        atexit.unregister(self._end)
        self._end()

    def _end(self, patience: float | None = None) -> None:
        self.ending.set()
        if not self._thread.is_alive() or sys.is_finalizing():
            return
        with suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(self._over.set)
        if patience is not None:
            self._thread.join(patience)
        else:
            self.until(self._ended)

    def _ended(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        if not self.ending.is_set():
            await self._over.wait()
        if self._closing is not None:
            await self._closing()


class _Call(Generic[T]):
    """Runs a coroutine and keeps its value or its error, as a SystemExit in a task would end the event loop."""

    value: T

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.error: BaseException | None = asyncio.CancelledError()  # the error if the coroutine never starts
        self.ended = threading.Event()
        self._work = work
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Run the coroutine as a task of the running loop."""
        self._task = asyncio.ensure_future(self._run_work())
        self._task.add_done_callback(lambda _: self._end())

    def cancel(self) -> None:
        """Cancel the coroutine. Call it in the loop's thread."""
        if self._task is None:
            self._end()
        else:
            self._task.cancel()

    async def outcome(self) -> T:
        """Run the coroutine in the current task; return its value or raise its error."""
        if threading.current_thread() is threading.main_thread():
            _pulse(asyncio.get_running_loop())
        await self._run_work()
        if self.error is not None:
            raise self.error
        return self.value

    def hand_over(self, interrupt: BaseException) -> None:
        """Set ``interrupt.result`` to the value of the coroutine, or to the ``result`` of its error."""
        result = getattr(self, "value", None) if self.error is None else getattr(self.error, "result", None)
        if result is not None:
            with suppress(AttributeError):  # an exception class may forbid new attributes
                interrupt.result = result  # type: ignore[attr-defined]

    async def _run_work(self) -> None:
        try:
            self.value = await self._work
            self.error = None
        except BaseException as error:
            self.error = error

    def _end(self) -> None:
        self._work.close()  # a task that was cancelled early never started it
        self.ended.set()


def _current_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _run(work: Coroutine[Any, Any, T]) -> T:
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    try:
        return runner.run(work)
    finally:
        closing = threading.Thread(target=runner.close, name="rksc_tot.closing", daemon=True)
        closing.start()
        closing.join(GRACE)


def _pulse(loop: asyncio.AbstractEventLoop) -> None:
    """Wake the loop every ``PULSE`` seconds, as a signal that another thread received does not wake it."""
    loop.call_later(PULSE, _pulse, loop)


_END = object()
Answer = tuple[Any, BaseException | None]


class InThread:
    """An iterable as an async iterator. A daemon thread reads one item for each call of ``anext``.

    An error of the iterable is raised by ``anext``. The thread ends after the last item, an error or :meth:`close`, as soon as
    the iterable returns.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items
        self._asked: queue.SimpleQueue[asyncio.Future[Answer] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=copy_context().run, args=(self._read,), name="rksc_tot.problems", daemon=True).start()

    def __aiter__(self) -> InThread:
        return self

    async def __anext__(self) -> Any:
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._asked.put(answer)
        item, error = await answer
        if error is not None:
            raise error
        if item is _END:
            raise StopAsyncIteration
        return item

    def close(self) -> None:
        """Stop reading."""
        self._asked.put(None)

    def _read(self) -> None:
        items: Iterator[Any] | None = None
        while (asked := self._asked.get()) is not None:
            answer: Answer
            try:
                items = iter(self._items) if items is None else items
                answer = next(items, _END), None
            except BaseException as error:  # SystemExit too: anext raises it
                answer = _END, error
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(_set_answer, asked, answer)


def _set_answer(asked: asyncio.Future[Answer], answer: Answer) -> None:
    if not asked.done():
        asked.set_result(answer)
