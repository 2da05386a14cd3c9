"""A byte budget of KV that several engines share, such as those of a model and of its reward model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

from rksc_tot.core.errors import CacheError, ConfigError
from rksc_tot.core.sizes import kv_bytes


class SharedRoomTaken(CacheError):
    """Another engine with the same budget was faster."""


class EnginePool(Protocol):
    """The rows of one engine (see :class:`~rksc_tot.cache.kv_budget.slot_pool.SlotPool`).

    Attributes
    ----------
    row_bytes
        Bytes of one row.
    """

    row_bytes: int

    @property
    def used_bytes(self) -> int:
        """Bytes that the engine holds."""
        ...


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
        self._members: dict[EnginePool, Member] = {}

    @property
    def most(self) -> int:
        """Most bytes that one engine can hold."""
        return self.size - self.floor * (self.engines - 1)

    @property
    def used(self) -> int:
        """Bytes that all engines hold."""
        return sum(pool.used_bytes for pool in self._members)

    def join(self, pool: EnginePool, give_up: Callable[[int], None], busy: Callable[[], bool]) -> None:
        """Add the pool of an engine.

        ``give_up(rows)``: evicts so many rows that no running job needs, or as many as there are. ``busy()``: whether jobs run.
        """
        with self.lock:
            if len(self._members) == self.engines:
                raise ConfigError(f"the KV budget is shared by {self.engines} engines already", hint="raise engines")
            self._members[pool] = Member(give_up, busy)

    def leave(self, pool: EnginePool) -> None:
        """Remove the pool of an engine that is closed."""
        with self.lock:
            self._members.pop(pool, None)

    def left(self, pool: EnginePool) -> int:
        """Bytes that a pool may still take."""
        others = [max(self.floor, other.used_bytes) for other in self._members if other is not pool]
        return self.size - pool.used_bytes - sum(others) - self.floor * (self.engines - 1 - len(others))

    def ask(self, pool: EnginePool, missing: int) -> bool:
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

    def others_busy(self, pool: EnginePool) -> bool:
        """Whether a running job of another engine may hold what the pool lacks."""
        return any(
            other is not pool and other.used_bytes > self.floor and member.busy()
            for other, member in list(self._members.items())
        )


class Member(NamedTuple):
    """An engine with a shared budget, see :meth:`SharedKVBudget.join`."""

    give_up: Callable[[int], None]
    busy: Callable[[], bool]
