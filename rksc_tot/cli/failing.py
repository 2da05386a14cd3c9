"""How the command fails: one sentence on stderr and an exit code, a traceback only on request."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rksc_tot.budget import BudgetReached
from rksc_tot.errors import RkscTotError

FAILED = 1
USAGE = 2
NOT_SOLVED = 3
INTERRUPTED = 130


@contextmanager
def one_sentence(debug: bool = False) -> Iterator[None]:
    """Turn an error within the block into one sentence on stderr and an exit code; ``debug`` lets it through."""
    try:
        yield
    except (BrokenPipeError, SystemExit):
        raise
    except KeyboardInterrupt:
        _say("interrupted")
        raise SystemExit(INTERRUPTED) from None
    except RkscTotError as error:
        if debug:
            raise
        _say(str(error))
        raise SystemExit(FAILED) from None
    except Exception as error:
        if debug or error.__class__.__module__.startswith(("typer", "click")):
            raise
        _say(f"unexpected {type(error).__name__}: {error} - run again with --debug to see where")
        raise SystemExit(FAILED) from None


class Interrupt:
    """Ctrl-C as a flag, so that a search can end with its best so far; the second Ctrl-C ends it at once."""

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def raise_if_came(self) -> None:
        """End the search that calls this, as a budget would."""
        if self.came:
            raise BudgetReached("interrupted")

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.came:
            raise KeyboardInterrupt
        self.came = True


def _say(message: str) -> None:
    line = " ".join(message.split())
    sys.stderr.write(
        "error: " + "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)[:1000] + "\n"
    )
