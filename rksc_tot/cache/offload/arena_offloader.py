"""Copies the KV of segments out of the arena before it is evicted or dropped."""

from __future__ import annotations

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.offload.store import OffloadStore
from rksc_tot.cache.segment import Segment


class ArenaOffloader:
    """The :class:`~rksc_tot.cache.residency.KVOffloader` from one arena to one store."""

    def __init__(self, store: OffloadStore, arena: Arena) -> None:
        self._store = store
        self._arena = arena

    def offload(self, segment: Segment) -> None:
        """Copy the KV of a segment to the store, unless it is there already or is not exact."""
        kv = segment.kv
        if kv.present is not None or not kv.exact or not kv.computed:
            return
        if kv.offloaded is not None and not kv.offloaded.gone and kv.offloaded.tokens >= kv.computed:
            return
        kv.drop_offloaded()
        kv.offloaded = self._store.offload(self._arena, kv.slots)
