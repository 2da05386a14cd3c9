"""The offload store: KV that left the arena, in host memory or on disk, to be copied back instead of computed again.

::

    arena     slots 7 3 4  ──stow──►  rows 0..2 ┐ Stowed   split ► Stowed, Stowed      drop, or the least recently used of a
              slots 9 1 2  ◄─restore─           ┘                                      full store: gone

A store never holds more than its limit, and never fails: what does not fit, cannot be written or comes back damaged is
computed again, so nobody loses more than time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol, cast

import torch

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.extents import Extents, batches, cut
from rksc_tot.cache.offload.cost_model import CostModel
from rksc_tot.cache.offload.disk import SpillFile
from rksc_tot.cache.offload.memory import Slabs
from rksc_tot.cache.offload.records import Records
from rksc_tot.core.errors import CacheError, ConfigError
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.core.sizes import OFFLOAD_BUDGET, kv_bytes

_log = logging.getLogger("rksc_tot")

FAULTS = (OSError, MemoryError, torch.OutOfMemoryError)


class Place(Protocol):
    """Rows of records somewhere. It is given rows that do not cross a multiple of ``step``, and may raise :data:`FAULTS`."""

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
        How many.
    gone
        Whether the store holds it no longer: it was dropped, made room for others, was damaged, or was split.
    """

    __slots__ = ("_runs", "_store", "gone", "tokens")

    def __init__(self, store: OffloadStore, runs: list[range]) -> None:
        self._store = store
        self._runs = runs
        self.tokens = sum(map(len, runs))
        self.gone = False

    def split(self, at: int) -> tuple[OffloadedRecord, OffloadedRecord]:
        """The first ``at`` tokens and the rest, instead of this. Nothing is moved; either may be dropped without the other.

        Both are gone if this is.

        Raises
        ------
        CacheError
            If ``at`` is not within.
        """
        return self._store._split(self, at)

    def drop(self) -> None:
        """Give its room back. To drop what is gone does nothing."""
        self._store._drop(self)


class OffloadStore:
    """KV of evicted tokens within ``limit`` bytes; the least recently used makes room. Made by :func:`open_store`.

    For one engine: only its thread calls, but :meth:`close` may come from any. What is copied back stays in the store, so
    evicting it once more takes no copy. Where it fails it says so once, by a warning, and goes on as far as it can.

    Parameters
    ----------
    name
        For messages.
    limit
        Bytes of KV it may hold.
    make
        Makes the place, given how records look and how many of them there may be. It is called when there is something to
        store.

    Attributes
    ----------
    costs
        Whether copying back pays; the store reports its copies, the engine its passes.
    failed
        Why nothing more is stored, None while it is. What was stored before can still be copied back.
    closed
        Whether it was closed.
    stowed_tokens, restored_tokens
        Copied out of arenas, and back, so far.
    displaced_tokens
        That had to make room for others, so far.
    refused_tokens
        That came back damaged or not at all, so far.
    """

    def __init__(self, name: str, limit: int, make: Callable[[Records, int], Place]) -> None:
        self.name = name
        self.limit = limit
        self.costs = CostModel()
        self.failed: str | None = None
        self.closed = False
        self.stowed_tokens = 0
        self.restored_tokens = 0
        self.displaced_tokens = 0
        self.refused_tokens = 0
        self._make = make
        self._records: Records | None = None
        self._place: Place | None = None
        self._extents = Extents(0)
        self._held: dict[OffloadedRecord, None] = {}  # the least recently used first
        self._lock = threading.Lock()
        self._taken = False

    def take(self) -> None:
        """Be the store of one engine.

        Raises
        ------
        ConfigError
            If it is another's already.
        """
        with self._lock:
            if self._taken:
                raise ConfigError("this offload store has an engine", hint="give each engine a store of its own")
            self._taken = True

    @property
    def bytes(self) -> int:
        """Bytes of KV that it holds."""
        return (self._extents.rows - self._extents.free) * (self._records.size if self._records else 0)

    def stow(self, arena: Arena, slots: Sequence[int]) -> OffloadedRecord | None:
        """Copy the KV in ``slots`` out of the arena; None if the store is closed, has failed, or is too small for it.

        The slots may be overwritten at once.

        Raises
        ------
        CacheError
            If the arena's layers are not those the store began with.
        """
        with self._lock, torch.inference_mode():
            if self.closed or self.failed is not None:
                return None
            try:
                place = self._open(Records.of(arena))
                if len(slots) > self._extents.rows:
                    return None
                while self._extents.free < len(slots):
                    oldest = next(iter(self._held))
                    self.displaced_tokens += oldest.tokens
                    self._forget(oldest)
                stowed = OffloadedRecord(self, self._extents.take(len(slots)))
                self._held[stowed] = None
                try:
                    for rows, part in _pairs(stowed._runs, slots, place):
                        place.put(rows, arena, part)
                except BaseException:
                    self._forget(stowed)
                    raise
            except FAULTS as error:
                self._fail(_reason(error))
                return None
            self.stowed_tokens += stowed.tokens
            return stowed

    def restore(self, stowed: OffloadedRecord, arena: Arena, slots: Sequence[int]) -> bool:
        """Copy what was stowed into ``slots``, bit for bit; the arena is made large enough.

        False if it is gone, or was refused since it cannot be read or is not what was written. Then it is gone, and a slot holds
        what it held before or what it was to hold, never anything else.

        Raises
        ------
        CacheError
            If it is another store's, or there are more or fewer slots than tokens.
        """
        with self._lock, torch.inference_mode():
            if stowed._store is not self or len(slots) != stowed.tokens:
                raise CacheError(
                    f"{stowed.tokens} tokens, maybe of another store, cannot be copied to {len(slots)} slots"
                )
            if stowed.gone or self._place is None:
                return False
            self._touch(stowed)
            try:
                arena.reserve(max(slots, default=-1) + 1)
                start = time.perf_counter()
                for rows, part in _pairs(stowed._runs, slots, self._place):
                    self._place.fetch(rows, arena, part)
            except FAULTS as error:
                self._refuse(stowed, _reason(error))
                return False
            self.costs.copied(stowed.tokens, time.perf_counter() - start)
            self.restored_tokens += stowed.tokens
            return True

    def prefetch(self, stowed: OffloadedRecord) -> None:
        """Say that it will be restored soon: reading begins, where that helps, and others make room before it does."""
        with self._lock:
            if not stowed.gone and self._place is not None:
                self._touch(stowed)
                for rows in stowed._runs:
                    self._place.prefetch(rows)

    def close(self) -> None:
        """Forget all and give memory and disk back. Nothing is stored or found afterwards; to close again does nothing."""
        with self._lock:
            self.closed = True
            for stowed in list(self._held):
                self._forget(stowed)
            if self._place is not None:
                self._place.close()
                self._place = None

    def check_integrity(self) -> None:
        """Raise CacheError unless every row is free or of one entry, and the limit is kept."""
        with self._lock:
            self._extents.check_integrity(rows for stowed in self._held for rows in stowed._runs)
            if self.bytes > self.limit or any(stowed.gone for stowed in self._held):
                raise CacheError("the offload store holds more than it may, or what is gone")

    # -- inside, under the lock --------------------------------------------------------------------------------------

    def _open(self, records: Records) -> Place:
        if self._records not in (None, records):
            raise CacheError("an offload store got KV of another shape", hint="give each engine a store of its own")
        if self._place is None:
            rows = self.limit // records.size
            if not rows:
                raise MemoryError(f"its limit is {self.limit} bytes, and one token takes {records.size}")
            self._place = self._make(records, rows)
            self._records, self._extents = records, Extents(rows)
        return self._place

    def _touch(self, stowed: OffloadedRecord) -> None:
        self._held[stowed] = self._held.pop(stowed)

    def _forget(self, stowed: OffloadedRecord) -> None:
        del self._held[stowed]
        self._extents.give(stowed._runs)
        stowed.gone = True

    def _fail(self, reason: str) -> None:
        self.failed = reason
        _log.warning("offload to %s stopped, what is evicted from now on is computed again: %s", self.name, reason)

    def _refuse(self, stowed: OffloadedRecord, reason: str) -> None:
        if not self.refused_tokens:
            _log.warning("offload to %s lost KV, which is computed again; more may follow: %s", self.name, reason)
        self.refused_tokens += stowed.tokens
        self._forget(stowed)

    # -- of entries --------------------------------------------------------------------------------------------------

    def _split(self, stowed: OffloadedRecord, at: int) -> tuple[OffloadedRecord, OffloadedRecord]:
        if not 0 < at < stowed.tokens:
            raise CacheError(f"cannot split {stowed.tokens} tokens at {at}")
        with self._lock:
            head, tail = (OffloadedRecord(self, runs) for runs in cut(stowed._runs, at))
            if stowed.gone:
                head.gone = tail.gone = True
            else:
                del self._held[stowed]
                stowed.gone = True
                self._held |= {head: None, tail: None}
            return head, tail

    def _drop(self, stowed: OffloadedRecord) -> None:
        with self._lock:
            if not stowed.gone:
                self._forget(stowed)


def open_store(
    named: str | OffloadStore | None, limit: int | str = OFFLOAD_BUDGET, folder: str | Path | None = None
) -> OffloadStore | None:
    """The store of that name, the store itself, or None for None.

    Parameters
    ----------
    named
        ``"cpu"``: host memory, pinned where the arena is on CUDA. ``"disk"``: a file.
    limit
        Bytes it may hold, or a text such as ``"4GiB"``; of what is made here.
    folder
        Of the file, which is there only while the store is open and, where the system allows, has no name. None: the system's
        folder for temporary files.

    Raises
    ------
    ConfigError
        If there is no such store or folder, the folder is no path, the limit is not above 0, the store has no use for a
        folder, or it is closed.
    """
    if named is None:
        return None
    if isinstance(named, OffloadStore):
        if named.closed:
            raise ConfigError("this offload store is closed", hint="open another one")
        if folder is not None or kv_bytes(limit) != kv_bytes(OFFLOAD_BUDGET):
            raise ConfigError("this offload store has a budget and a place of its own", hint="leave others out")
        return named
    if named not in ("cpu", "disk"):
        raise ConfigError(f"offload is {cast('object', named)!r}", hint="name one of cpu, disk")
    size = kv_bytes(limit, "offload_budget")
    if named == "cpu":
        if folder is not None:
            raise ConfigError(
                f"offload to cpu has no use for the folder {str(folder)!r}", hint="offload to disk, or leave it out"
            )
        return OffloadStore("memory", size, Slabs)
    if folder is not None and (not isinstance(cast("object", folder), str | Path) or not folder):
        raise ConfigError(f"offload_folder is {shown(folder)}", hint="give the path of a folder, or leave it out")
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError(f"there is no folder {str(folder)!r} to offload to", hint="make it, or leave it out")
    return OffloadStore("disk", size, partial(SpillFile, folder=None if folder is None else Path(folder)))


def _pairs(runs: list[range], slots: Sequence[int], place: Place) -> Iterator[tuple[range, list[int]]]:
    """Rows of the place and slots of the arena that belong together."""
    rest = iter(slots)
    for rows in batches(runs, place.step):
        yield rows, list(islice(rest, len(rows)))


def _reason(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error).partition("\n")[0]
