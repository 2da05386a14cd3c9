"""Whether to copy KV back or to compute it again, by measured times. Both give the same KV, so only time depends on it."""

from __future__ import annotations

import math


class LinearCost:
    """Seconds as a straight line in the number of tokens, fitted to recent measurements.

    Least squares with exponential decay: each measurement weighs :data:`FADE` times as much as the next one. One more
    measurement, of no tokens in no time, makes the slope defined from the first measurement on. Slope and offset are at least
    0. A measurement above :data:`MOST` times the estimate counts as that: hiccups of a machine only make it slower.

    A mean rate would not do: it charges the fixed time of a copy, or of a pass, to each token.
    """

    FADE = 0.9
    MOST = 4.0

    def __init__(self) -> None:
        self._weight = 0.0  # of all measurements; the last one weighs 1
        self._tokens = 0.0  # mean
        self._seconds = 0.0  # mean
        self._spread = 0.0  # weighted sum of (tokens - mean tokens) ** 2
        self._joint = 0.0  # weighted sum of (tokens - mean tokens) * (seconds - mean seconds)

    def tell(self, tokens: int, seconds: float) -> None:
        """Take a measurement into account, unless it has no tokens or no valid time."""
        if tokens < 1 or not 0 < seconds < math.inf:
            return
        if self.known:
            seconds = min(seconds, self.MOST * self.at(tokens))
        self._weight = self.FADE * self._weight + 1
        further = tokens - self._tokens
        self._tokens += further / self._weight
        self._seconds += (seconds - self._seconds) / self._weight
        self._spread = self.FADE * self._spread + further * (tokens - self._tokens)
        self._joint = self.FADE * self._joint + further * (seconds - self._seconds)

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return self._weight > 0

    @property
    def slope(self) -> float:
        """Seconds that each further token takes; 0 before the first measurement."""
        if not self.known:
            return 0.0
        share = self._weight / (self._weight + 1)
        slope = (self._joint + share * self._tokens * self._seconds) / (self._spread + share * self._tokens**2)
        return min(max(slope, 0.0), self._seconds / self._tokens)

    def at(self, tokens: int) -> float:
        """Seconds that ``tokens`` take; 0 before the first measurement."""
        return self._seconds + self.slope * (tokens - self._tokens)


class CostModel:
    """Decides for tokens whose KV is in an offload store.

    A pass runs in any case, for the tokens that follow on the path. Computing again therefore costs the time that further rows
    add to a pass, while copying costs its whole time. The model says copy as long as it knows too little:

    * no pass was measured, or fewer than :data:`TRIES` copies;
    * no copy was at least 1/:data:`FURTHER` as long (the fixed time dominates a short copy);
    * the last copy was :data:`STALE` passes ago, so its time may be out of date.
    """

    STALE = 512  # passes
    TRIES = 3
    FURTHER = 4  # times the longest copy so far

    def __init__(self) -> None:
        self.copying = LinearCost()
        self.computing = LinearCost()
        self._passes = 0  # since the last copy
        self._copies = 0
        self._longest = 0  # tokens

    def copied(self, tokens: int, seconds: float) -> None:
        """Report from the store: ``tokens`` were copied back in ``seconds``; on CUDA, the time until the copy was queued."""
        self.copying.tell(tokens, seconds)
        self._passes = 0
        self._copies += 1
        self._longest = max(self._longest, tokens)

    def computed(self, rows: int, seconds: float) -> None:
        """Report from the engine: a pass of ``rows`` took ``seconds``."""
        self.computing.tell(rows, seconds)
        self._passes += 1

    def copy_is_cheaper(self, tokens: int, missing: int | None = None) -> bool:
        """Whether to copy ``tokens`` back rather than to compute ``missing`` of them again; None: all of them."""
        unknown = self._copies < self.TRIES or tokens > self.FURTHER * self._longest or not self.computing.known
        if unknown or self._passes >= self.STALE:
            return True
        return self.copying.at(tokens) <= self.computing.slope * (tokens if missing is None else missing)
