"""A rate limit for redraws and lines of progress."""

from __future__ import annotations

import time
from collections.abc import Callable

LINES = 30.0  # seconds between two lines of progress without a terminal


class Pace:
    """Limits the rate of an action.

    Parameters
    ----------
    seconds : float
        Least time before the first action, and between two actions.
    clock : callable
        Returns seconds from any start.
    """

    def __init__(self, seconds: float = LINES, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._last = clock()

    def due(self) -> bool:
        """Whether the action is due; if so, start the next interval."""
        now = self._clock()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True
