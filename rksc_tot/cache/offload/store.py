"""The offload store: KV that left the arena, in host memory or on disk, to be copied back instead of computed again.

::

    arena  slots 7 3 4  ──offload──►  rows 0..2 of the store, one OffloadedRecord
           slots 9 1 2  ◄──restore──

A record can be split, and is gone when it is dropped or when a full store needs its rows: the least recently used record goes
first. A store never holds more than its limit and never fails. KV that does not fit, cannot be written or comes back damaged is
computed again, which costs time only.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Protocol

import torch

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.free_rows import FreeRows, batches, cut
from rksc_tot.cache.offload.cost_model import CostModel
from rksc_tot.cache.offload.records import Records
from rksc_tot.core.errors import CacheError, ConfigError

_log = logging.getLogger("rksc_tot")

FAULTS = (OSError, MemoryError, torch.OutOfMemoryError)


class Place(Protocol):
    """Rows of records in host memory or in a file. All methods may raise :data:`FAULTS`.

    Attributes
    ----------
    step
        No call names rows on both sides of a multiple of ``step``.
    """

    step: int

    def put(self, rows: range, arena: Arena, slots: list[int]) -> None: ...
    def fetch(self, rows: range, arena: Arena, slots: list[int]) -> None: ...
    def prefetch(self, rows: range) -> None: ...
    def close(self) -> None: ...


class OffloadedRecord:
    """The KV of a run of tokens in a store.

    Attributes
    ----------
    tokens
        Number of tokens.
    gone
        Whether the store no longer holds the record: it was dropped, displaced, damaged or split.
    """

    __slots__ = ("_runs", "_store", "gone", "tokens")

    def __init__(self, store: OffloadStore, runs: list[range]) -> None:
        self._store = store
        self._runs = runs
        self.tokens = sum(map(len, runs))
        self.gone = False

    def split(self, at: int) -> tuple[OffloadedRecord, OffloadedRecord]:
        """Replace this record by two: the first ``at`` tokens, and the rest. No KV is moved. Both are gone if this one is.

        Raises
        ------
        CacheError
            If ``at`` is not inside the record.
        """
        return self._store._split(self, at)

    def drop(self) -> None:
        """Free the rows of the record. Dropping a record that is gone does nothing."""
        self._store._drop(self)


class OffloadStore:
    """KV of evicted tokens within ``limit`` bytes. Made by :func:`~rksc_tot.cache.offload.open_store.open_store`.

    A store serves one engine. Only the engine's thread calls it, except for :meth:`close`. Restored KV stays in the store, so
    evicting it again takes no copy. A failure is logged once as a warning, and the store goes on as far as it can.

    Parameters
    ----------
    name
        Name in messages.
    limit
        Bytes of KV that the store may hold.
    make
        Makes the place from the layout of the records and their greatest number, when KV is first stored.

    Attributes
    ----------
    costs
        Whether copying back pays. The store reports its copies, the engine its passes.
    failed
        Why no more KV is stored; None while KV is stored. Earlier records can still be restored.
    closed
        Whether the store was closed.
    offloaded_tokens, restored_tokens
        Tokens copied out of the arena, and back, so far.
    displaced_tokens
        Tokens dropped to make room for others so far.
    refused_tokens
        Tokens that came back damaged or not at all so far.
    """

    def __init__(self, name: str, limit: int, make: Callable[[Records, int], Place]) -> None:
        self.name = name
        self.limit = limit
        self.costs = CostModel()
        self.failed: str | None = None
        self.closed = False
        self.offloaded_tokens = 0
        self.restored_tokens = 0
        self.displaced_tokens = 0
        self.refused_tokens = 0
        self._make = make
        self._records: Records | None = None
        self._place: Place | None = None
        self._free_rows = FreeRows(0)
        self._held: dict[OffloadedRecord, None] = {}  # the least recently used first
        self._lock = threading.Lock()
        self._taken = False

    def take(self) -> None:
        """Claim the store for one engine.

        Raises
        ------
        ConfigError
            If another engine has claimed it.
        """
        with self._lock:
            if self._taken:
                raise ConfigError("this offload store has an engine", hint="give each engine a store of its own")
            self._taken = True

    @property
    def bytes(self) -> int:
        """Bytes of KV in the store."""
        return (self._free_rows.rows - self._free_rows.free) * (self._records.size if self._records else 0)

    def offload(self, arena: Arena, slots: Sequence[int]) -> OffloadedRecord | None:
        """Copy the KV in ``slots`` out of the arena. The slots may be overwritten at once.

        Returns
        -------
        OffloadedRecord or None
            The record; None if the store is closed, has failed, or is too small.

        Raises
        ------
        CacheError
            If the layout of the arena has changed since the first call.
        """
        with self._lock, torch.inference_mode():
            if self.closed or self.failed is not None:
                return None
            try:
                place = self._open(Records.of(arena))
                if len(slots) > self._free_rows.rows:
                    return None
                while self._free_rows.free < len(slots):
                    oldest = next(iter(self._held))
                    self.displaced_tokens += oldest.tokens
                    self._forget(oldest)
                record = OffloadedRecord(self, self._free_rows.take(len(slots)))
                self._held[record] = None
                try:
                    for rows, part in _pairs(record._runs, slots, place):
                        place.put(rows, arena, part)
                except BaseException:
                    self._forget(record)
                    raise
            except FAULTS as error:
                self._fail(_reason(error))
                return None
            self.offloaded_tokens += record.tokens
            return record

    def restore(self, record: OffloadedRecord, arena: Arena, slots: Sequence[int]) -> bool:
        """Copy a record into ``slots``, bit for bit. The arena grows as needed.

        Returns
        -------
        bool
            False if the record is gone, cannot be read, or is not what was written. The record is gone then. Each slot holds its
            former KV or that of the record, and no other.

        Raises
        ------
        CacheError
            If the record is of another store, or the number of slots is wrong.
        """
        with self._lock, torch.inference_mode():
            if record._store is not self or len(slots) != record.tokens:
                raise CacheError(
                    f"{record.tokens} tokens, maybe of another store, cannot be copied to {len(slots)} slots"
                )
            if record.gone or self._place is None:
                return False
            self._touch(record)
            try:
                arena.reserve(max(slots, default=-1) + 1)
                start = time.perf_counter()
                for rows, part in _pairs(record._runs, slots, self._place):
                    self._place.fetch(rows, arena, part)
            except FAULTS as error:
                self._refuse(record, _reason(error))
                return False
            self.costs.copied(record.tokens, time.perf_counter() - start)
            self.restored_tokens += record.tokens
            return True

    def prefetch(self, record: OffloadedRecord) -> None:
        """Begin to read a record that will be restored soon. Other records make room before it does."""
        with self._lock:
            if not record.gone and self._place is not None:
                self._touch(record)
                for rows in record._runs:
                    self._place.prefetch(rows)

    def close(self) -> None:
        """Drop all records and free memory and disk. The store stores nothing afterwards. Closing it again does nothing."""
        with self._lock:
            self.closed = True
            for record in list(self._held):
                self._forget(record)
            if self._place is not None:
                self._place.close()
                self._place = None

    def check_integrity(self) -> None:
        """Raise CacheError unless each row is free or belongs to one record, and the limit is kept."""
        with self._lock:
            self._free_rows.check_integrity(rows for record in self._held for rows in record._runs)
            if self.bytes > self.limit or any(record.gone for record in self._held):
                raise CacheError("the offload store holds more than it may, or a record that is gone")

    # -- inside, under the lock --------------------------------------------------------------------------------------

    def _open(self, records: Records) -> Place:
        if self._records not in (None, records):
            raise CacheError("an offload store got KV of another shape", hint="give each engine a store of its own")
        if self._place is None:
            rows = self.limit // records.size
            if not rows:
                raise MemoryError(f"its limit is {self.limit} bytes, and one token takes {records.size}")
            self._place = self._make(records, rows)
            self._records, self._free_rows = records, FreeRows(rows)
        return self._place

    def _touch(self, record: OffloadedRecord) -> None:
        self._held[record] = self._held.pop(record)

    def _forget(self, record: OffloadedRecord) -> None:
        del self._held[record]
        self._free_rows.give(record._runs)
        record.gone = True

    def _fail(self, reason: str) -> None:
        self.failed = reason
        _log.warning("offload to %s stopped, KV evicted from now on is computed again: %s", self.name, reason)

    def _refuse(self, record: OffloadedRecord, reason: str) -> None:
        if not self.refused_tokens:
            _log.warning("offload to %s lost KV, which is computed again; more may follow: %s", self.name, reason)
        self.refused_tokens += record.tokens
        self._forget(record)

    # -- of records --------------------------------------------------------------------------------------------------

    def _split(self, record: OffloadedRecord, at: int) -> tuple[OffloadedRecord, OffloadedRecord]:
        if not 0 < at < record.tokens:
            raise CacheError(f"cannot split {record.tokens} tokens at {at}")
        with self._lock:
            head, tail = (OffloadedRecord(self, runs) for runs in cut(record._runs, at))
            if record.gone:
                head.gone = tail.gone = True
            else:
                del self._held[record]
                record.gone = True
                self._held |= {head: None, tail: None}
            return head, tail

    def _drop(self, record: OffloadedRecord) -> None:
        with self._lock:
            if not record.gone:
                self._forget(record)


def _pairs(runs: list[range], slots: Sequence[int], place: Place) -> Iterator[tuple[range, list[int]]]:
    """Each batch of rows, with the slots that belong to it."""
    rest = iter(slots)
    for rows in batches(runs, place.step):
        yield rows, list(islice(rest, len(rows)))


def _reason(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error).partition("\n")[0]
