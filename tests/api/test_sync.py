"""Coroutines run from code that is not async."""

import asyncio
import contextlib
import threading

import pytest

from rksc_tot.api.sync import LoopThread, run_async
from tests.patience import PATIENCE


async def answer():
    return threading.current_thread().name


def test_without_a_loop_it_runs_here_and_with_one_in_a_thread():
    async def asked():
        return run_async(answer())

    assert run_async(answer()) == threading.current_thread().name
    assert asyncio.run(asked()) == "rksc_tot.solve"


async def test_an_error_is_raised_in_the_caller():
    async def fail():
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        run_async(fail())


def test_a_task_that_ignores_its_cancellation_is_left_behind():
    release = threading.Event()

    async def stubborn():
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    async def work():
        tasks.append(asyncio.ensure_future(stubborn()))
        await asyncio.sleep(0)
        return 7

    tasks = []
    assert run_async(work()) == 7
    release.set()
    [closing] = [thread for thread in threading.enumerate() if thread.name == "rksc_tot.closing"]
    closing.join(PATIENCE)
    assert tasks[0].done()


async def test_an_interrupt_of_the_caller_cancels_the_work_in_the_thread(monkeypatch):
    started, cancelled = threading.Event(), threading.Event()

    async def work():
        started.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    class Interrupted(threading.Thread):
        def join(self, timeout=None):
            if self.name == "rksc_tot.solve":
                started.wait(PATIENCE)
                raise KeyboardInterrupt
            super().join(timeout)

    monkeypatch.setattr(threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_async(work())
    assert cancelled.wait(PATIENCE)


def test_a_loop_in_a_thread_goes_on_between_two_calls_and_cancels_what_is_left():
    ticked, cancelled = threading.Event(), threading.Event()

    async def ticks():
        try:
            while True:
                await asyncio.sleep(0)
                ticked.set()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def begin():
        tasks.append(asyncio.ensure_future(ticks()))

    async def fail():
        raise KeyError("x")

    tasks = []
    with LoopThread("rksc_tot.test") as loop:
        loop.wait(begin())
        assert ticked.wait(PATIENCE)
        assert loop.wait(answer()) == "rksc_tot.test"
        with pytest.raises(KeyError, match="x"):
            loop.wait(fail())
        assert not cancelled.is_set()
    assert cancelled.wait(PATIENCE)
    assert "rksc_tot.test" not in [thread.name for thread in threading.enumerate()]
