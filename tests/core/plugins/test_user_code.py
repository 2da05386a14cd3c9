"""Every exception of user code becomes an error with the name of the method; interrupts and cancellations pass."""

import asyncio
import threading

import pytest

from rksc_tot.core.plugins.user_code import (
    UserCodeError,
    awaiting_user_code,
    calling_user_code,
    error_text,
    plain_str,
    shown,
)
from tests.patience import PATIENCE


class Mute(Exception):
    def __str__(self):
        raise ValueError("no text")


class Odd:
    def __repr__(self):
        raise SystemExit(3)


ERRORS = [ValueError("x"), SystemExit(0), GeneratorExit(), StopIteration(), asyncio.CancelledError(), Mute()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_every_exception_of_the_block_becomes_one_error_with_its_name(error):
    with (
        pytest.raises(UserCodeError, match=rf"^the code raised {type(error).__name__}") as caught,
        calling_user_code("the code"),
    ):
        raise error
    assert caught.value.error is error


def test_errors_of_the_passing_types_pass_unchanged():
    with pytest.raises(KeyError), calling_user_code("it", LookupError):
        raise KeyError("x")


def test_an_interrupt_passes_in_the_main_thread_only():
    with pytest.raises(KeyboardInterrupt), calling_user_code("it"):
        raise KeyboardInterrupt
    found = []

    def work():
        try:
            with calling_user_code("it"):
                raise KeyboardInterrupt
        except UserCodeError as raised:
            found.append(str(raised))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == ["it raised KeyboardInterrupt"]


async def test_a_requested_cancellation_passes():
    async def work():
        with awaiting_user_code("it"):
            await asyncio.sleep(PATIENCE)

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_plain_user_code_cannot_cancel_the_task_that_calls_it():
    with pytest.raises(UserCodeError, match=r"^it raised AttributeError"), calling_user_code("it"):
        asyncio.current_task().cancel()
    await asyncio.sleep(0)
    assert asyncio.current_task().cancelling() == 0


class Hostile(str):
    """A text whose methods lie or raise."""

    __slots__ = ()

    def __len__(self):
        return 0

    def strip(self, *_):
        raise SystemExit("strip")

    def __str__(self):
        return Hostile("another")

    def __getitem__(self, at):
        raise SystemExit("getitem")

    __iter__ = encode = replace = __eq__ = __add__ = __getitem__
    __hash__ = str.__hash__


def test_a_text_has_none_of_the_methods_of_its_class():
    for text, said in ((plain_str(Hostile("one")), "one"), (shown(Hostile("one")), "'one'")):
        assert type(text) is str
        assert text == said


def test_a_value_whose_str_raises_can_be_shown():
    assert error_text(Mute()) == "Mute: <Mute without a text>"
    assert shown(Odd()) == "<Odd without a text>"
    assert shown(10**5000) == "<int without a text>"
    error_text(ValueError("\ud800")).encode()
