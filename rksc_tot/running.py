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
