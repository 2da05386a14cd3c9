"""Which rows of the arena are taken."""

from __future__ import annotations

from rksc_tot.cache.free_rows import FreeRows, runs_of
from rksc_tot.core.errors import CacheError


class SlotPool:
    """Hands out row numbers of the arena, at most ``limit`` at a time.

    Free rows are reused before the arena grows, so the arena needs no more rows than were ever taken at once. A contiguous run
    of free rows is preferred, since attention reads it without a copy.

    Attributes
    ----------
    limit
        The most rows that may be taken at a time.
    row_bytes
        Bytes of one row over all layers, for messages.
    peak
        The most rows that were taken at a time so far.
    """

    def __init__(self, limit: int, row_bytes: int = 1) -> None:
        if limit < 1:
            raise CacheError(f"a KV budget of {limit} tokens holds nothing", hint="raise the KV budget")
        self.limit = limit
        self.row_bytes = row_bytes
        self.peak = 0
        self._rows = FreeRows(0)

    @property
    def used(self) -> int:
        """Rows taken."""
        return self._rows.rows - self._rows.free

    @property
    def available(self) -> int:
        """Rows that can still be allocated."""
        return self.limit - self.used

    @property
    def extent(self) -> int:
        """One past the highest row ever taken: the number of rows that the arena needs."""
        return self._rows.rows

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` rows. The caller makes room first.

        Raises
        ------
        CacheError
            If fewer are available.
        """
        if count > self.available:
            raise CacheError(f"{count} rows asked for, {self.available} of {self.limit} free")
        self._rows.grow(max(0, count - self._rows.free))
        rows = [row for run in self._rows.take(count) for row in run]
        self.peak = max(self.peak, self.used)
        return rows

    def free(self, rows: list[int]) -> None:
        """Return rows to the pool."""
        self._rows.give(runs_of(rows))

    def check_integrity(self, taken: list[int]) -> None:
        """Raise CacheError unless free and taken rows are disjoint and make up all rows of the arena."""
        self._rows.check_integrity(runs_of(sorted(taken)))
