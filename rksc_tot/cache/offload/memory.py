"""Records in the host's memory."""

from __future__ import annotations

from torch import Tensor

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.offload.records import Records


class Slabs:
    """Memory that is taken slab by slab when it is first needed, used again and again, and given back at the end.

    A tensor for each run of tokens would be simpler, but under a steady coming and going of runs of several lengths the
    allocator held 1.9 times the limit and a copy took 1.7 times as long; pinned memory is rounded up to powers of two besides.
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
        """Copy ``rows`` back into ``slots``. On CUDA the stream keeps it before whatever is put there next."""
        self._records.unpack(arena, slots, self._view(rows))

    def prefetch(self, rows: range) -> None:
        """Nothing: it is there."""

    def close(self) -> None:
        """Give the memory back."""
        self._slabs.clear()

    def _view(self, rows: range) -> Tensor:
        at = rows.start % self.step
        return self._slabs[rows.start // self.step][at : at + len(rows)]
