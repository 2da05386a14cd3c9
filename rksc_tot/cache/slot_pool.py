"""Slot numbers: which rows of the arena are taken."""

from __future__ import annotations

from rksc_tot.core.errors import CacheError


class SlotPool:
    """Hands out row numbers of the arena, at most ``limit`` at a time.

    Long runs are taken from the untouched end of the arena where they are contiguous (the kernel can then read them
    without a gather); single rows come from the most recently freed ones. ``row_bytes``: of each, for messages.
    """

    RUN = 8  # from this many on, contiguity is worth an untouched row

    def __init__(self, limit: int, row_bytes: int = 1) -> None:
        if limit < 1:
            raise CacheError(f"a KV budget of {limit} tokens holds nothing", hint="raise the KV budget")
        self.limit = limit
        self.row_bytes = row_bytes
        self.peak = 0
        self._free: list[int] = []
        self._fresh = 0  # rows from here on were never used

    @property
    def used(self) -> int:
        """Rows taken."""
        return self._fresh - len(self._free)

    @property
    def available(self) -> int:
        """Rows that can still be allocated."""
        return self.limit - self.used

    @property
    def extent(self) -> int:
        """One past the highest row ever taken: what the arena must have room for."""
        return self._fresh

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` rows. The caller makes room first: raises CacheError if there is none."""
        if count > self.available:
            raise CacheError(f"{count} rows asked for, {self.available} of {self.limit} free")
        untouched = self.limit - self._fresh
        if count >= self.RUN and count <= untouched:
            rows = self._take_fresh(count)
        else:
            reused = min(count, len(self._free))
            rows = [self._free.pop() for _ in range(reused)] + self._take_fresh(count - reused)
        self.peak = max(self.peak, self.used)
        return rows

    def free(self, rows: list[int]) -> None:
        """Give rows back."""
        self._free.extend(rows)

    def check_integrity(self, taken: list[int]) -> None:
        """Raise CacheError unless free and taken rows are disjoint and make up all rows ever used."""
        if sorted(self._free + taken) != list(range(self._fresh)):
            raise CacheError("slot accounting is broken: free and taken rows do not add up")

    def _take_fresh(self, count: int) -> list[int]:
        rows = list(range(self._fresh, self._fresh + count))
        self._fresh += count
        return rows
