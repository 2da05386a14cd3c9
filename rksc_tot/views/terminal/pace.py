"""How often something is shown."""

from __future__ import annotations

import time
from collections.abc import Callable

LINES = 30.0  # seconds between two lines of progress where there is no terminal


class Pace:
    """Says whether it is time again.

    Parameters
    ----------
    seconds : float
        Least time between two of them, and before the first.
    clock : callable
        Seconds, from any start.
    """

    def __init__(self, seconds: float = LINES, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._last = clock()

    def due(self) -> bool:
        """Whether the time is over; if it is, the next begins."""
        now = self._clock()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True
