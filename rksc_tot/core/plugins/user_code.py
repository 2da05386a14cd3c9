"""Calls user code: every exception of user code becomes a ``UserCodeError`` that names the method."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class UserCodeError(Exception):
    """An exception of user code, such as ``parse raised ValueError: no such step``. ``error``: the exception."""

    def __init__(self, what: str, error: BaseException) -> None:
        self.error = error
        missing = isinstance(error, NotImplementedError) and not error.args
        super().__init__(f"{what} is missing" if missing else f"{what} raised {error_text(error)}")


@contextmanager
def calling_user_code(what: str, *passing: type[BaseException]) -> Iterator[None]:
    """Run user code in the block. ``what``: its name in messages. ``passing``: types of exceptions that pass unchanged.

    Raises
    ------
    UserCodeError
        For any other exception of the block, SystemExit included. Ctrl-C and a requested cancellation pass unchanged.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, passing) or _from_outside(error):
            raise
        raise UserCodeError(what, error) from error


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


def text_of(value: object, say: Callable[[Any], str] = str) -> str:
    """The ``str`` of a value, also if its ``__str__`` raises. Characters that UTF-8 cannot encode are replaced."""
    try:
        text = say(value)
    except BaseException as error:
        if _from_outside(error):
            raise
        return f"<{type(value).__name__} without a text>"
    return text.encode(errors="replace").decode()
