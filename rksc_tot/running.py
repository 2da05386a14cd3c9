"""Coroutines for callers that are not async."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
GRACE = 0.5  # seconds


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

    Between two calls of :meth:`wait` the loop goes on with the tasks it has. What it has left at the end is cancelled.
    """

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=lambda: run_async(self._serve()), name=name, daemon=True)
        self._ready = threading.Event()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of a coroutine, run in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def __enter__(self) -> LoopThread:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._over.wait()


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
