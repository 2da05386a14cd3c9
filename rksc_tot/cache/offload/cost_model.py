"""Copy or compute again: what each is measured to take. Both give the same KV, so only time depends on it."""

from __future__ import annotations

import math


class LinearCost:
    """Seconds as a straight line in the number of tokens, fitted to what was measured lately.

    Least squares in which an observation weighs :data:`FADE` times what the next one does, with one more observation, of no
    tokens in no time, so that a slope is defined from the first one on. Neither slope nor offset is below 0. A measurement
    that takes more than :data:`MOST` times what the line says counts as that: machines hiccup upwards only.
    """

    FADE = 0.9
    MOST = 4.0

    def __init__(self) -> None:
        self._weight = 0.0  # of all observations, by the last one's
        self._tokens = 0.0  # mean
        self._seconds = 0.0  # mean
        self._spread = 0.0  # weighted sum of squared distances from the mean number of tokens
        self._joint = 0.0  # likewise of the products with the distances from the mean of the seconds

    def tell(self, tokens: int, seconds: float) -> None:
        """Take a measurement into account; one of nothing, or in no time, says nothing."""
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
        """Seconds of one more token; 0 before anything was measured."""
        if not self.known:
            return 0.0
        share = self._weight / (self._weight + 1)
        slope = (self._joint + share * self._tokens * self._seconds) / (self._spread + share * self._tokens**2)
        return min(max(slope, 0.0), self._seconds / self._tokens)

    def at(self, tokens: int) -> float:
        """Seconds of that many tokens; 0 before anything was measured."""
        return self._seconds + self.slope * (tokens - self._tokens)


class CostModel:
    """Which is cheaper for tokens whose KV is in an offload store.

    After the copy, or instead of it, a pass runs in any case, for what comes next on the path. So computing again costs what
    rows add to a pass, and copying what it takes altogether. It says copy as long as too little is known: passes were never
    measured, or copies fewer than :data:`TRIES` times, or none of even a quarter of the length (of a short one what every copy
    takes is most); likewise when so many passes went by since the last copy that its measure may be out of date.
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
        """A store's own report: ``tokens`` came back in ``seconds``; on CUDA until the work was queued."""
        self.copying.tell(tokens, seconds)
        self._passes = 0
        self._copies += 1
        self._longest = max(self._longest, tokens)

    def computed(self, rows: int, seconds: float) -> None:
        """The engine's report: a pass of ``rows`` took ``seconds``."""
        self.computing.tell(rows, seconds)
        self._passes += 1

    def copy_is_cheaper(self, tokens: int, missing: int | None = None) -> bool:
        """Whether to copy ``tokens`` back rather than to compute again those that are ``missing``; None: all of them."""
        unknown = self._copies < self.TRIES or tokens > self.FURTHER * self._longest or not self.computing.known
        if unknown or self._passes >= self.STALE:
            return True
        return self.copying.at(tokens) <= self.computing.slope * (tokens if missing is None else missing)
