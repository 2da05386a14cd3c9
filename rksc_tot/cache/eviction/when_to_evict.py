"""Decides when to evict: whenever new tokens do not fit into the KV budget of the engine or of their search.

Eviction is leaf first: a segment may lose its slots when no segment below it holds KV and no running job pins it. Segments go
in three rounds: first those that no handle refers to, then those that a handle refers to (they are computed again when they
are visited), last the prompts of open searches, where a request would fail otherwise. Within a round the eviction policy
decides (see :mod:`rksc_tot.cache.eviction.queue`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from rksc_tot.cache.eviction.evict import Evictor
from rksc_tot.cache.eviction.queue import OPEN_PROMPT, UNHELD, EvictionQueue
from rksc_tot.cache.kv_budget.payer import Payer
from rksc_tot.cache.kv_budget.shared_kv_budget import SharedRoomTaken
from rksc_tot.cache.residency import Residency
from rksc_tot.core.errors import AccountFull, CacheError


class KVCompressor(Protocol):
    """Makes room by dropping the KV of single tokens (see :mod:`rksc_tot.engine.kv.tree_compressor`)."""

    def make_room(self, residency: Residency, count: int) -> None:
        """Drop KV until ``count`` slots are free, or as far as the compression policy goes."""
        ...


class RoomMaker:
    """Keeps the KV of one tree within the budgets.

    Parameters
    ----------
    residency, queue, evictor
        Of the tree.
    compressor
        Asked to make room before a segment is evicted that a handle refers to; None: segments are evicted at once.
    """

    def __init__(
        self, residency: Residency, queue: EvictionQueue, evictor: Evictor, compressor: KVCompressor | None = None
    ) -> None:
        self._residency, self._pool = residency, residency.pool
        self._queue, self._evictor = queue, evictor
        self._compressor = compressor

    def allocate(self, count: int, payer: Payer | None = None, limit: int | None = None) -> list[int]:
        """Slots for ``count`` tokens, with room made for them (see :meth:`make_room`)."""
        while True:
            self.make_room(count, payer, limit)
            with suppress(SharedRoomTaken):
                return self._pool.allocate(count)

    def make_room(self, count: int, payer: Payer | None = None, limit: int | None = None) -> None:
        """Evict or compress until ``count`` slots are free.

        ``limit``: most tokens that may then be resident on the account ``payer``; None: no limit. Raises CacheError if the KV
        that is left is in use, AccountFull if that of ``payer`` is.
        """
        if payer is not None and limit is not None:
            self._make_room_within(count, payer, limit)
        compressor = self._compressor
        while self._pool.available < count:
            victim = self._queue.pop(last=OPEN_PROMPT if compressor is None else UNHELD)
            if victim is not None:
                self._evictor.evict_for_room(victim)
            elif compressor is not None:
                compressor.make_room(self._residency, count)
                compressor = None
            elif not self._pool.ask(count):
                raise self._full(count)

    def _make_room_within(self, count: int, payer: Payer, limit: int) -> None:
        """Evict KV of ``payer`` until it may store ``count`` more. Looks at every segment whenever something is evicted."""
        while payer.kv_rows + count > limit:
            mine = (segment for segment in self._residency.tree.segments() if segment.kv.payer is payer)
            victims = sorted((key, segment) for segment in mine if (key := self._queue.key(segment)) is not None)
            if not victims:
                raise AccountFull(
                    f"{_more(count)} the {limit} this search may hold, {payer.kv_rows} of which are in use",
                    hint="raise its budget of KV bytes or expand fewer branches at once",
                )
            for _, victim in victims:
                if payer.kv_rows + count <= limit:
                    break
                self._evictor.evict_for_room(victim)

    def _full(self, count: int) -> CacheError:
        pool, needed, other = self._pool, "running branches need", ""
        if not self._queue.policy.evicts_held:
            needed, other = "running branches or open handles need", "let another policy evict, "
        return CacheError(
            f"{_more(count)} the KV budget of {pool.limit} tokens, {pool.used} of which {needed}",
            hint=f"{other}raise the KV budget, by {(count - pool.available) * pool.row_bytes} bytes at least,"
            " or expand fewer branches at once",
        )


def _more(count: int) -> str:
    """The beginning of a message about tokens for which there is no room."""
    return "1 more token does not fit" if count == 1 else f"{count} more tokens do not fit"
