"""Errors and signals of the command: one sentence on stderr and an exit code, a traceback with ``--debug`` only.

This module is imported first, so that Ctrl-C during the other imports is handled too.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, NoReturn, TypeVar

from rksc_tot.core.errors import ConfigError, RkscTotError

T = TypeVar("T")
FAILED = 1
USAGE = 2
NOT_SOLVED = 3
ENDED = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
INTERRUPTED = 128 + signal.SIGINT


class Signalled(KeyboardInterrupt):
    """A signal of ``ENDED`` ends the program. ``result``: the result of the cancelled work, if there is one."""

    def __init__(self, number: int, result: object = None) -> None:
        super().__init__()
        self.number = signal.Signals(number)
        self.result = result


@contextmanager
def one_sentence(debug: bool = False) -> Iterator[None]:
    """Turn an error in the block into one sentence on stderr and an exit code. With ``debug``, raise it instead.

    A ConfigError without a result comes from the command line, so its exit code is that of wrong usage. Commands exit with
    ``typer.Exit``, so a SystemExit comes from a plug-in and is handled as an error.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except Signalled as error:
        interrupted(error.number)
    except KeyboardInterrupt:
        interrupted()
    except RkscTotError as error:
        if debug:
            raise
        _say(str(error))
        raise SystemExit(USAGE if isinstance(error, ConfigError) and error.result is None else FAILED) from None
    except BaseException as error:
        if error.__class__.__module__.startswith(("typer", "click")):
            raise
        if isinstance(error, SystemExit) and isinstance(
            error.__context__, BrokenPipeError
        ):  # raised by rich when stdout is closed
            raise
        if debug and isinstance(error, Exception):
            raise
        if debug:  # a SystemExit would end the program without a message
            raise RuntimeError(f"unexpected {type(error).__name__}") from error
        _say(f"unexpected {type(error).__name__}: {error} - run again with --debug for the traceback")
        raise SystemExit(FAILED) from None


def interrupted(number: signal.Signals = signal.SIGINT) -> NoReturn:
    """Exit with the code of a program that was ended by a signal."""
    _say(ENDED[number])
    raise SystemExit(128 + number) from None


class Interrupt:
    """Turns Ctrl-C or SIGTERM into a cancellation of the work of :meth:`run`. A second signal ends the program at once.

    ``number``: the signal that arrived, or None.
    """

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        self._cancel: Callable[[], object] = lambda: None

    def __enter__(self) -> Interrupt:
        self._before = {number: signal.signal(number, self._note) for number in ENDED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its value. The first signal cancels it; once it has ended, Signalled is raised."""
        import asyncio

        from rksc_tot.api.sync import run_async

        try:
            return run_async(self._cancellable(work))
        except asyncio.CancelledError as error:
            if self.number is None:
                raise
            raise Signalled(self.number, getattr(error, "result", None)) from None

    async def _cancellable(self, work: Coroutine[Any, Any, T]) -> T:
        import asyncio

        task = asyncio.ensure_future(work)
        self._cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
        if self.number is not None:  # the signal came before the task started
            task.cancel()
        try:
            return await task
        finally:
            self._cancel = lambda: None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            raise Signalled(number)
        self.number = signal.Signals(number)
        self._cancel()


def _say(message: str) -> None:
    line = " ".join(message.split())
    sys.stderr.write(
        "error: " + "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)[:1000] + "\n"
    )
