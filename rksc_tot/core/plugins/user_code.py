"""Calls user code: every exception of user code becomes a ``UserCodeError`` that names the method."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

# of asyncio's documented API for other implementations of tasks
enter_task, leave_task = asyncio.tasks._enter_task, asyncio.tasks._leave_task


class UserCodeError(Exception):
    """An exception of user code, such as ``parse raised ValueError: no such step``. ``error``: the exception."""

    def __init__(self, what: str, error: BaseException) -> None:
        self.error = error
        missing = isinstance(error, NotImplementedError) and not error.args
        super().__init__(f"{what} is missing" if missing else f"{what} raised {error_text(error)}")


@contextmanager
def calling_user_code(what: str, *passing: type[BaseException]) -> Iterator[None]:
    """Run plain user code in the block, which awaits nothing. ``what``: its name in messages.

    In the block there is no current asyncio task, so that user code cannot cancel the task of the search.

    Parameters
    ----------
    what
        The name of the user code in messages.
    passing
        Types of exceptions that pass unchanged.

    Raises
    ------
    UserCodeError
        For any other exception of the block, SystemExit included. Ctrl-C passes unchanged.
    """
    with _no_current_task(), awaiting_user_code(what, *passing):
        yield


@contextmanager
def awaiting_user_code(what: str, *passing: type[BaseException]) -> Iterator[None]:
    """As :func:`calling_user_code`, for a block that awaits. A cancellation that was requested passes unchanged, too."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, passing) or _from_outside(error):
            raise
        raise UserCodeError(what, error) from error


@contextmanager
def _no_current_task() -> Iterator[None]:
    """Hide the current asyncio task, if there is one."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # no event loop in this thread
        loop, task = None, None
    else:
        task = asyncio.current_task(loop)
    if loop is None or task is None:
        yield
        return
    leave_task(loop, task)
    try:
        yield
    finally:
        enter_task(loop, task)


def _from_outside(error: BaseException) -> bool:
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()
    if not isinstance(error, asyncio.CancelledError):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop in this thread
        return False
    return task is not None and task.cancelling() > 0


def error_text(error: BaseException) -> str:
    """An exception in one phrase, such as ``ValueError: no such step``."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shown(value: object, longest: int = 80) -> str:
    """The repr of a value for a message: one line, cut to ``longest`` characters, with its closing quote or bracket."""
    text = text_of(value, repr).replace("\n", " ")
    if len(text) <= longest:
        return text
    end = "…" + (text[-1] if text[-1] in "'\")]}>" else "")
    return text[: longest - len(end)] + end


def plain_str(value: object) -> str:
    """The text of a value as a plain ``str``; of a subclass of ``str`` its characters. Raises what ``__str__`` raises."""
    return str.__str__(value if isinstance(value, str) else str(value))


def text_of(value: object, say: Callable[[Any], str] = str) -> str:
    """The ``str`` of a value, also if its ``__str__`` raises. Characters that UTF-8 cannot encode are replaced."""
    try:
        text = str.__str__(say(value))
    except BaseException as error:
        if _from_outside(error):
            raise
        return f"<{type(value).__name__} without a text>"
    return text.encode(errors="replace").decode()


def one_line(text: str, longest: int = 240) -> str:
    """The text on one line, with control and invisible characters replaced, cut after ``longest`` characters."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return "".join(c if c.isprintable() else " " if c in "\n\t\r" else "\N{REPLACEMENT CHARACTER}" for c in cut).strip()


def scalar(value: object) -> object:
    """The Python number of a numpy scalar or a 0-dimensional array or tensor; any other value unchanged."""
    if getattr(value, "ndim", None) != 0 or not callable(item := getattr(value, "item", None)):
        return value
    try:
        with calling_user_code("item"):
            found: object = item()
    except UserCodeError:
        return value
    return found


def finite(value: object) -> float | None:
    """A real number as a float; None for anything else, for infinities, and for numbers too large for a float."""
    value = scalar(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        with calling_user_code("float"):
            number = float(value)
    except UserCodeError:
        return None
    return number if math.isfinite(number) else None
