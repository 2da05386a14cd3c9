"""Coroutines called from code that is not async."""

import asyncio
import contextlib
import itertools
import signal
import threading

import pytest

from rksc_tot.api.solve import solve, stream
from rksc_tot.api.solve_many import solve_many
from rksc_tot.api.sync import LoopThread, run_async
from rksc_tot.verifiers import verifier
from tests.api.small_task import make_engine, make_task
from tests.patience import PATIENCE


async def answer():
    return threading.current_thread().name


def test_run_async_uses_a_thread_only_in_a_running_event_loop():
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


# -- Ctrl-C: each of these would wait for ever if it were not handled ------------------------------------------------------


def in_no_loop(work):
    work()


def under_asyncio_run(work):
    asyncio.run(called(work))


def in_a_notebook(work):
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(called(work))
    finally:
        loop.close()


async def called(work):
    work()


@pytest.fixture
def interrupting():
    """A verifier that never ends; at its first call another thread raises the signal, which does not wake the main thread."""
    raising = threading.Thread(target=signal.raise_signal, args=(signal.SIGINT,))

    @verifier(timeout=None)
    async def interrupts(problem, path):
        if raising.ident is None:
            raising.start()
        await asyncio.Event().wait()

    return interrupts


@pytest.mark.parametrize("place", [in_no_loop, under_asyncio_run, in_a_notebook])
def test_ctrl_c_ends_solve_with_the_best_so_far(place, interrupting):
    engine = make_engine()
    with pytest.raises(KeyboardInterrupt) as caught:
        place(lambda: solve(make_task(), 1, engine=engine, verifier=interrupting))
    assert len(caught.value.result.path) == 1
    assert caught.value.result.stopped == "cancelled"
    assert engine.handles == 0


@pytest.mark.parametrize("place", [in_no_loop, under_asyncio_run, in_a_notebook])
def test_ctrl_c_ends_solve_many_with_its_tally(place, interrupting):
    engine = make_engine()
    run = solve_many(make_task(), itertools.count(), engine=engine, verifier=interrupting, concurrency=1)
    with pytest.raises(KeyboardInterrupt):
        place(lambda: list(run))
    assert (run.tally.started, run.tally.finished, run.tally.stopped) == (1, 0, "cancelled")
    assert engine.handles == 0


@pytest.mark.parametrize("place", [in_no_loop, under_asyncio_run, in_a_notebook])
def test_ctrl_c_ends_a_stream_with_the_best_so_far(place, interrupting):
    engine = make_engine()
    run = stream(make_task(), 1, engine=engine, verifier=interrupting)
    with pytest.raises(KeyboardInterrupt):
        place(lambda: list(run))
    assert len(run.result.path) == 1
    assert engine.handles == 0


def test_ctrl_c_between_two_waits_ends_the_next_wait():
    async def forever():
        await asyncio.Event().wait()

    def work():
        with LoopThread("rksc_tot.test") as thread:
            thread.wait(answer())
            signal.raise_signal(signal.SIGINT)
            thread.wait(forever())

    with pytest.raises(KeyboardInterrupt):
        under_asyncio_run(work)


def test_a_second_ctrl_c_does_not_wait():
    released = threading.Event()

    async def stubborn():
        signal.raise_signal(signal.SIGINT)  # in the thread of the loop
        try:
            await asyncio.Event().wait()
        finally:
            signal.raise_signal(signal.SIGINT)
            released.wait(PATIENCE)

    def work():
        with LoopThread("rksc_tot.test") as thread:
            try:
                thread.wait(stubborn())
            finally:
                waited.append(released.is_set())
                released.set()

    waited = []
    with pytest.raises(KeyboardInterrupt):
        under_asyncio_run(work)
    assert waited == [False]


def test_a_caller_that_handles_the_interrupt_is_not_counted_as_cancelled(interrupting):
    async def main():
        with pytest.raises(KeyboardInterrupt):
            solve(make_task(), 1, engine=make_engine(), verifier=interrupting)
        cancelling.append(asyncio.current_task().cancelling())

    cancelling = []
    with contextlib.suppress(KeyboardInterrupt):  # before Python 3.13 the task cannot be told that it was handled
        asyncio.run(main())
    assert cancelling == [0]


# -- a loop in a thread ----------------------------------------------------------------------------------------------------


def test_a_loop_thread_runs_between_two_waits_and_cancels_the_rest_at_the_end():
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
