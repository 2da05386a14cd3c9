"""Coroutines for callers that are not async."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import queue
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar, cast

from rksc_tot.core.errors import RkscTotError

T = TypeVar("T")
GRACE = 0.5  # seconds
AT_EXIT = 5.0  # seconds, at most, that the end of the program waits for work in a thread


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """The outcome of a coroutine, from code that is not async.

    Where an event loop is running (a notebook), it works in a thread; a Ctrl-C there cancels it. Tasks it leaves behind
    that ignore their cancellation are abandoned in a daemon thread after half a second.
    """
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    if not _inside_a_loop():
        return _run(runner, work)
    task = runner.get_loop().create_task(work)
    failure: list[BaseException] = []

    def target() -> None:
        try:
            _run(runner, _awaited(task))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=target, name="rksc_tot.solve", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        with contextlib.suppress(RuntimeError):  # it has ended in the meantime
            runner.get_loop().call_soon_threadsafe(task.cancel)
        raise
    if failure:
        raise failure[0]
    return task.result()


class LoopThread:
    """An event loop in a daemon thread of its own, as a context: ``with LoopThread("name") as loop: loop.wait(work())``.

    Between two calls of :meth:`wait` the loop goes on with the tasks it has. At the end, that of the program included,
    ``closing`` is awaited, and what is left then is cancelled.
    """

    def __init__(self, name: str, closing: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        self._closing = closing
        self._thread = threading.Thread(target=lambda: run_async(self._serve()), name=name, daemon=True)
        self._ready = threading.Event()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of a coroutine, run in the loop; whatever it raises, SystemExit included, is raised here alone."""
        if not self._thread.is_alive():
            work.close()
            raise RkscTotError("the program is ending", hint="go through the outcomes before")
        result, error = asyncio.run_coroutine_threadsafe(_settled(work), self._loop).result()
        if error is not None:
            raise error
        return cast("T", result)

    def __enter__(self) -> LoopThread:
        self._thread.start()
        self._ready.wait()
        atexit.register(self._end, AT_EXIT)  # a daemon thread stands still after that, and nobody could wait for it
        return self

    def __exit__(self, *_: object) -> None:
        atexit.unregister(self._end)
        self._end()

    def _end(self, patience: float | None = None) -> None:
        if not self._thread.is_alive() or sys.is_finalizing():
            return
        with contextlib.suppress(RuntimeError):  # it has ended in the meantime
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(patience)

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._over.wait()
        if self._closing is not None:
            await self._closing()


async def _settled(work: Coroutine[Any, Any, T]) -> tuple[T | None, BaseException | None]:
    """The outcome of a coroutine as a value: a SystemExit in a task would end its loop, and all that runs there."""
    try:
        return await work, None
    except BaseException as error:
        return None, error


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run(runner: asyncio.Runner, work: Coroutine[Any, Any, T]) -> T:
    try:
        return runner.run(work)
    finally:
        closing = threading.Thread(target=runner.close, name="rksc_tot.closing", daemon=True)
        closing.start()
        closing.join(GRACE)


async def _awaited(task: asyncio.Task[T]) -> T:
    return await task


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
