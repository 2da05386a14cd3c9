"""A bounded call bounds user code: what it raises, and what it does to asyncio, stays in the call."""

import asyncio

import pytest

from rksc_tot.core.plugins.bounded_call import BoundedCall
from rksc_tot.core.plugins.user_code import UserCodeError
from tests.patience import PATIENCE


async def cancels_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(PATIENCE)


def cancels_its_task():
    asyncio.current_task().cancel()


async def awaits_a_cancelled_task():
    other = asyncio.ensure_future(asyncio.sleep(PATIENCE))
    other.cancel()
    await other


def raises():
    raise asyncio.CancelledError


async def raises_async():
    raise asyncio.CancelledError


async def late():
    await asyncio.sleep(0)
    cancels_its_task()


@pytest.mark.parametrize("timeout", [None, PATIENCE])
@pytest.mark.parametrize(
    "function", [cancels_itself, cancels_its_task, awaits_a_cancelled_task, raises, raises_async, late]
)
async def test_a_cancellation_by_user_code_is_a_failed_call(function, timeout):
    call = BoundedCall("it", timeout, 2, lambda: None, wait=0)
    with pytest.raises(UserCodeError, match=r"^it raised"):
        await call(function, tuple)
    await asyncio.sleep(0)
    assert asyncio.current_task().cancelling() == 0


@pytest.mark.parametrize("timeout", [None, PATIENCE])
async def test_a_cancellation_from_outside_passes_and_ends_the_call(timeout):
    began, ended = asyncio.Event(), asyncio.Event()

    async def waits():
        began.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            ended.set()

    task = asyncio.ensure_future(BoundedCall("it", timeout, 2, lambda: None)(waits, tuple))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await ended.wait()
