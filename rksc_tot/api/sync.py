"""Run coroutines from code that is not async; a Ctrl-C ends every wait here."""

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
GRACE = 0.5  # seconds that tasks which ignore their cancellation get
AT_EXIT = 5.0  # seconds, at most, that the end of the program waits for work in a thread
PULSE = 0.1  # seconds, at most, until a waiting main thread handles a signal that another thread received


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """The outcome of a coroutine, from code that is not async.

    Where an event loop is running (a notebook), the coroutine runs in a thread. A Ctrl-C cancels the coroutine, and
    KeyboardInterrupt is raised once it has ended; the interrupt has the ``result`` of the coroutine's own error, if there is
    one. A second Ctrl-C waits for nothing. Tasks that the coroutine leaves behind and that ignore their cancellation are
    abandoned in a daemon thread after half a second.
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
    """An event loop in a daemon thread of its own, as a context: ``with LoopThread("name") as thread: thread.wait(work())``.

    Between two calls of :meth:`wait` the loop goes on with the tasks it has. At the end, that of the program included,
    ``closing`` is awaited, and what is left then is cancelled.

    Attributes
    ----------
    ending : threading.Event
        Set once the end has come. Code that blocks the loop must look at it.
    """

    def __init__(self, name: str, closing: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        self.ending = threading.Event()
        self._closing = closing
        self._thread = threading.Thread(target=lambda: run_async(self._serve()), name=name, daemon=True)
        self._ready = threading.Event()
        self._caller = None if _current_loop() is None else asyncio.current_task()
        self._cancelled = 0 if self._caller is None else self._caller.cancelling()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of a coroutine, run in the loop; whatever it raises, SystemExit included, is raised here alone.

        A Ctrl-C is handled as in :func:`run_async`.
        """
        if not self._thread.is_alive():
            work.close()
            raise RkscTotError("the program is ending", hint="go through the outcomes before")
        call = _Call(work)
        try:
            self._loop.call_soon_threadsafe(call.start)
            self.until(call.ended.wait)
        except BaseException as interrupt:
            with suppress(RuntimeError):  # the loop has ended in the meantime
                self._loop.call_soon_threadsafe(call.cancel)
            self.until(call.ended.wait)
            call.hand_over(interrupt)
            raise
        if call.error is not None:
            raise call.error
        return call.value

    def until(self, over: Callable[[float], bool]) -> None:
        """Wait until something is over, or the thread has ended.

        The main thread handles a signal that another thread received only when it wakes up, so it waits in short pieces. Under
        ``asyncio.run`` the first Ctrl-C raises nothing: it cancels the running task, which is looked at between the pieces.

        Parameters
        ----------
        over : callable
            Waits at most so many seconds, and says whether it is over.

        Raises
        ------
        KeyboardInterrupt
            If the task that made this thread was cancelled.
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
        atexit.register(self._end, AT_EXIT)  # a daemon thread stands still after that, and nobody could wait for it
        return self

    def __exit__(self, *_: object) -> None:
        atexit.unregister(self._end)
        self._end()

    def _end(self, patience: float | None = None) -> None:
        self.ending.set()
        if not self._thread.is_alive() or sys.is_finalizing():
            return
        with suppress(RuntimeError):  # the loop has ended in the meantime
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
        if not self.ending.is_set():  # nobody waits any more
            await self._over.wait()
        if self._closing is not None:
            await self._closing()


class _Call(Generic[T]):
    """A coroutine and its outcome, whatever that is: a SystemExit in a task would end the loop, and all that runs there."""

    value: T

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.error: BaseException | None = asyncio.CancelledError()  # until it has begun
        self.ended = threading.Event()
        self._work = work
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Run it in the running loop."""
        self._task = asyncio.ensure_future(self._settle())
        self._task.add_done_callback(lambda _: self._end())

    def cancel(self) -> None:
        """Cancel it, in its loop."""
        if self._task is None:
            self._end()
        else:
            self._task.cancel()

    async def outcome(self) -> T:
        """Run it in the running task; returns its value, or raises its error."""
        if threading.current_thread() is threading.main_thread():
            _pulse(asyncio.get_running_loop())
        await self._settle()
        if self.error is not None:
            raise self.error
        return self.value

    def hand_over(self, interrupt: BaseException) -> None:
        """Give an interrupt the result of the coroutine, or that of its error."""
        result = getattr(self, "value", None) if self.error is None else getattr(self.error, "result", None)
        if result is not None:
            with suppress(AttributeError):  # an exception class may forbid it
                interrupt.result = result  # type: ignore[attr-defined]

    async def _settle(self) -> None:
        try:
            self.value = await self._work
            self.error = None
        except BaseException as error:
            self.error = error

    def _end(self) -> None:
        self._work.close()  # which has not begun if the task was cancelled before
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
    """Wake a loop up again and again: a signal that another thread received does not wake it."""
    loop.call_later(PULSE, _pulse, loop)


_END = object()
Answer = tuple[Any, BaseException | None]


class InThread:
    """An iterable as an async iterator: it is read in a daemon thread of its own, an item each time one is asked for.

    Whatever the iterable raises is raised by ``anext``. Once there is an end, an error or :meth:`close`, the thread ends; one
    that is inside the iterable at the time ends when that comes back.
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
        """Ask for no more."""
        self._asked.put(None)

    def _read(self) -> None:
        items: Iterator[Any] | None = None
        while (asked := self._asked.get()) is not None:
            answer: Answer
            try:
                items = iter(self._items) if items is None else items
                answer = next(items, _END), None
            except BaseException as error:  # SystemExit, too, is for the one who asked
                answer = _END, error
            with suppress(RuntimeError):  # the loop was closed in the meantime
                self._loop.call_soon_threadsafe(_settle, asked, answer)


def _settle(asked: asyncio.Future[Answer], answer: Answer) -> None:
    if not asked.done():
        asked.set_result(answer)
