"""Carries evictions out: the KV of a segment is offloaded, its slots become free, and the eviction is logged."""

from __future__ import annotations

from rksc_tot.cache.eviction.log import EvictionLog
from rksc_tot.cache.eviction.queue import OPEN_PROMPT, UNHELD, EvictionQueue
from rksc_tot.cache.residency import Residency
from rksc_tot.cache.segment import Segment


class Evictor:
    """Evicts segments of one tree. ``log``: counts and logs evictions."""

    def __init__(self, residency: Residency, queue: EvictionQueue, log: EvictionLog) -> None:
        self._residency, self._queue, self._log = residency, queue, log

    def evict(self, segment: Segment, offload: bool = True) -> None:
        """Free all slots of a segment. ``offload``: whether its KV is copied out first if a handle refers to it."""
        residency = self._residency
        if offload and (segment.handles or segment.children):
            residency.offload(segment)
        self._log.evicted(segment)
        residency.release(segment)
        segment.logits = segment.states = None
        if segment.parent is not None:
            segment.parent.stored_children.pop(segment, None)
        residency.tree.prune(segment)

    def evict_for_room(self, segment: Segment) -> None:
        """Evict a segment, and count its tokens as evicted to make room."""
        self._log.made_room(segment)
        self.evict(segment)

    def evict_subtree(self, at: Segment) -> None:
        """Evict all KV at and below ``at``, also where jobs run; these compute what they need again."""
        for segment in reversed(at.subtree()):
            if segment.kv.computed:
                self.evict(segment)

    def invalidate(self, at: Segment) -> None:
        """Drop all KV at and below ``at``, offloaded copies included: the model gave wrong values."""
        for segment in reversed(at.subtree()):
            segment.kv.drop_offloaded()
            if segment.kv.computed:
                self.evict(segment, offload=False)

    def give_up(self, count: int) -> None:
        """Evict until ``count`` more slots are free, as far as that goes."""
        pool = self._residency.pool
        most = pool.used - count
        while pool.used > most and (victim := self._queue.pop(last=OPEN_PROMPT)) is not None:
            self.evict(victim)

    def clear(self) -> None:
        """Evict everything that no handle and no running job needs."""
        while victim := self._queue.pop(last=UNHELD):
            self.evict(victim)
