"""How the command fails: one sentence on stderr and an exit code, a traceback only on request.

Imported first of all, so that a Ctrl-C during the other imports is a sentence too.
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
    """The end of the program, by one of the signals in ``ENDED``; ``result``: of the work it ended, if there is one."""

    def __init__(self, number: int, result: object = None) -> None:
        super().__init__()
        self.number = signal.Signals(number)
        self.result = result


@contextmanager
def one_sentence(debug: bool = False) -> Iterator[None]:
    """Turn an error within the block into one sentence on stderr and an exit code; ``debug`` lets it through.

    What is wrong with a setting before there is a search (an error without a result) was given on the command line.

    The command itself leaves by ``typer.Exit``, so a SystemExit here is a plug-in's, and an error like any other.
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
        if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):  # rich's: nobody reads on
            raise
        if debug and isinstance(error, Exception):
            raise
        if debug:  # on its own it would end the program without a word
            raise RuntimeError(f"unexpected {type(error).__name__}") from error
        _say(f"unexpected {type(error).__name__}: {error} - run again with --debug to see where")
        raise SystemExit(FAILED) from None


def interrupted(number: signal.Signals = signal.SIGINT) -> NoReturn:
    """Leave the program as one that a signal, such as that of Ctrl-C, has ended."""
    _say(ENDED[number])
    raise SystemExit(128 + number) from None


class Interrupt:
    """Ctrl-C, or SIGTERM, as a cancellation of the work that :meth:`run` runs; a second one ends the program at once.

    ``number``: of the signal that came, or None.
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
        """The outcome of a coroutine. The first signal cancels it, and Signalled is raised once it has ended."""
        import asyncio

        from rksc_tot.api.sync import run_async

        try:
            return run_async(self._watched(work))
        except asyncio.CancelledError as error:
            if self.number is None:
                raise
            raise Signalled(self.number, getattr(error, "result", None)) from None

    async def _watched(self, work: Coroutine[Any, Any, T]) -> T:
        import asyncio

        task = asyncio.ensure_future(work)
        self._cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
        if self.number is not None:  # it came before there was anything to end
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
