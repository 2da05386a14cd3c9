"""The KV budget of one engine: which rows of its arena are taken, how many bytes these hold, and that no more are given out."""

from __future__ import annotations

from contextlib import nullcontext

from rksc_tot.cache.free_rows import FreeRows, runs_of
from rksc_tot.cache.kv_budget.shared_kv_budget import SharedKVBudget, SharedRoomTaken
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
        Bytes of one row over all layers.
    shared
        The budget that other pools draw on as well; None: there are no others.
    peak
        The most rows that were taken at a time so far.
    """

    def __init__(self, limit: int, row_bytes: int = 1, shared: SharedKVBudget | None = None) -> None:
        if limit < 1:
            raise CacheError(f"a KV budget of {limit} tokens holds nothing", hint="raise the KV budget")
        self.limit = limit
        self.row_bytes = row_bytes
        self.shared = shared
        self.peak = 0
        self._rows = FreeRows(0)

    @property
    def used(self) -> int:
        """Rows taken."""
        return self._rows.rows - self._rows.free

    @property
    def used_bytes(self) -> int:
        """Bytes of the rows taken."""
        return self.used * self.row_bytes

    @property
    def available(self) -> int:
        """Rows that can still be allocated."""
        left = self.limit - self.used
        return left if self.shared is None else min(left, self.shared.left(self) // self.row_bytes)

    @property
    def guaranteed(self) -> int:
        """Rows that can always be taken, whatever other engines hold."""
        return self.limit if self.shared is None else self.shared.floor // self.row_bytes

    @property
    def others_busy(self) -> bool:
        """Whether a running job of another engine may hold what this pool lacks."""
        return self.shared is not None and self.shared.others_busy(self)

    def ask(self, count: int) -> bool:
        """Have other engines evict KV until ``count`` rows are available. Returns whether there are more than before."""
        missing = (count - self.available) * self.row_bytes
        return self.shared is not None and count <= self.limit - self.used and self.shared.ask(self, missing)

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
        with self.shared.lock if self.shared is not None else nullcontext():
            if count > self.available:
                kind = CacheError if self.shared is None else SharedRoomTaken
                raise kind(f"{count} rows asked for, {self.available} of {self.limit} free")
            self._rows.grow(max(0, count - self._rows.free))
            rows = [row for run in self._rows.take(count) for row in run]
            self.peak = max(self.peak, self.used)
            if self.shared is not None:
                self.shared.peak = max(self.shared.peak, self.shared.used)
        return rows

    def free(self, rows: list[int]) -> None:
        """Return rows to the pool."""
        self._rows.give(runs_of(rows))

    def trim(self) -> int:
        """Forget the free rows at the end. Returns the extent, to which the arena may shrink."""
        self._rows.trim()
        return self.extent

    def check_integrity(self, taken: list[int]) -> None:
        """Raise CacheError unless free and taken rows are disjoint and make up all rows of the arena."""
        self._rows.check_integrity(runs_of(sorted(taken)))
