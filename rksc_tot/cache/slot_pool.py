"""Which rows of the arena are taken, and a byte budget that the arenas of several engines share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

from rksc_tot.cache.free_rows import FreeRows, runs_of
from rksc_tot.core.errors import CacheError, ConfigError
from rksc_tot.core.sizes import kv_bytes


class SharedRoomTaken(CacheError):
    """Another engine with the same budget was faster."""


class SharedKVBudget:
    """A byte budget that the KV of several engines shares, such as that of a model and of its reward model.

    ::

        budget = SharedKVBudget("4GiB")
        engine = load_engine("writer", kv_budget=budget)
        verifier = prm("reward-model", kv_budget=budget)

    Each engine can always hold its *floor*, the budget divided by twice the number of engines. It takes what it needs beyond
    that from what the others neither hold nor have as their floor. An engine without room has the others evict KV above their
    floors that none of their running jobs needs. Resident KV never exceeds the budget, not even by one token.

    Parameters
    ----------
    size
        Bytes, or a text such as ``4GiB``.
    engines
        The number of engines.

    Attributes
    ----------
    size
        Bytes.
    floor
        Bytes that each engine can always hold.
    peak
        Most bytes held at a time so far.
    """

    def __init__(self, size: int | str, engines: int = 2) -> None:
        if engines < 2:
            raise ConfigError(f"a KV budget for {engines} engines is not shared", hint="give the engine the bytes")
        self.size = kv_bytes(size, "a shared KV budget")
        self.engines = engines
        self.floor = self.size // (2 * engines)
        self.peak = 0
        self.lock = threading.Lock()  # held while bytes are taken
        self._asking = threading.Lock()  # held while an engine waits for the others to evict
        self._members: dict[SlotPool, Member] = {}

    @property
    def most(self) -> int:
        """Most bytes that one engine can hold."""
        return self.size - self.floor * (self.engines - 1)

    @property
    def used(self) -> int:
        """Bytes that all engines hold."""
        return sum(pool.used_bytes for pool in self._members)

    def join(self, pool: SlotPool, give_up: Callable[[int], None], busy: Callable[[], bool]) -> None:
        """Add the pool of an engine.

        ``give_up(rows)``: evicts so many rows that no running job needs, or as many as there are. ``busy()``: whether jobs run.
        """
        with self.lock:
            if len(self._members) == self.engines:
                raise ConfigError(f"the KV budget is shared by {self.engines} engines already", hint="raise engines")
            self._members[pool] = Member(give_up, busy)

    def leave(self, pool: SlotPool) -> None:
        """Remove the pool of an engine that is closed."""
        with self.lock:
            self._members.pop(pool, None)

    def left(self, pool: SlotPool) -> int:
        """Bytes that a pool may still take."""
        others = [max(self.floor, other.used_bytes) for other in self._members if other is not pool]
        return self.size - pool.used_bytes - sum(others) - self.floor * (self.engines - 1 - len(others))

    def ask(self, pool: SlotPool, missing: int) -> bool:
        """Have the other engines evict ``missing`` bytes for a pool. Returns whether the pool may now take more.

        Only one engine at a time waits for others, so that no two wait for each other.
        """
        if not self._asking.acquire(blocking=False):
            return False
        try:
            before = self.left(pool)
            for other, member in list(self._members.items()):
                wanted = min(missing - (self.left(pool) - before), other.used_bytes - self.floor)
                if other is not pool and wanted > 0:
                    member.give_up(-(-wanted // other.row_bytes))
            return self.left(pool) > before
        finally:
            self._asking.release()

    def others_busy(self, pool: SlotPool) -> bool:
        """Whether a running job of another engine may hold what the pool lacks."""
        return any(
            other is not pool and other.used_bytes > self.floor and member.busy()
            for other, member in list(self._members.items())
        )


class Member(NamedTuple):
    """An engine with a shared budget, see :meth:`SharedKVBudget.join`."""

    give_up: Callable[[int], None]
    busy: Callable[[], bool]


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
