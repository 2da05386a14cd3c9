"""Records in the host's memory."""

from __future__ import annotations

from torch import Tensor

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.offload.records import Records


class Slabs:
    """Memory that is allocated slab by slab when it is first needed, reused, and freed at the end.

    One tensor for each run of tokens would be simpler. With runs of many lengths, however, the allocator held 1.9 times the
    limit and a copy took 1.7 times as long, and pinned memory is rounded up to powers of two.
    """

    SIZE = 32 << 20  # bytes

    def __init__(self, records: Records, rows: int) -> None:
        self.step = min(rows, max(1, self.SIZE // records.size))
        self._rows = rows
        self._records = records
        self._slabs: list[Tensor] = []

    def put(self, rows: range, arena: Arena, slots: list[int]) -> None:
        """Store the KV in ``slots``, one each, in ``rows``, which lie in one slab. Raises MemoryError."""
        while len(self._slabs) <= rows.start // self.step:
            left = self._rows - len(self._slabs) * self.step
            self._slabs.append(self._records.room(min(self.step, left)))
        self._records.pack(arena, slots, self._view(rows))

    def fetch(self, rows: range, arena: Arena, slots: list[int]) -> None:
        """Copy ``rows`` back into ``slots``. On CUDA the stream runs it before the rows are written again."""
        self._records.unpack(arena, slots, self._view(rows))

    def prefetch(self, rows: range) -> None:
        """Do nothing: the rows are in memory."""

    def close(self) -> None:
        """Free the memory."""
        self._slabs.clear()

    def _view(self, rows: range) -> Tensor:
        at = rows.start % self.step
        return self._slabs[rows.start // self.step][at : at + len(rows)]
