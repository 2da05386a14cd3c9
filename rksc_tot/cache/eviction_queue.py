"""The resident leaves in the order in which they would be evicted."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from rksc_tot.cache.segment import Key, Segment
from rksc_tot.core.errors import CacheError
from rksc_tot.policies.eviction.base import EvictionCandidate, EvictionPolicy

UNREFERRED, HELD, PROMPT = range(3)
"""Rounds of eviction: what no handle refers to, what one does, and the prompts of open searches."""


class EvictionQueue:
    """A heap of keys and segments in which old entries may linger.

    An entry whose segment has meanwhile become more precious, or may not go any more, is noticed when it comes to the top.
    Whatever makes a segment evictable or less precious offers it again. So an offer, and a choice, cost O(log n) for n
    resident leaves (amortised, beside the way up to the nearest rated segment), and nothing walks the tree.
    """

    ROOM = 1024  # entries up to which lingering ones are left alone

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self._heap: list[tuple[Key, Segment]] = []
        self._room = self.ROOM

    def offer(self, segment: Segment) -> None:
        """Note that a segment may have become evictable, or less precious than it was."""
        key = self.key(segment)
        if key is None or (segment.queued is not None and segment.queued <= key):
            return
        segment.queued = key
        heapq.heappush(self._heap, (key, segment))
        if len(self._heap) > self._room:
            self._tidy()

    def take(self, last: int = PROMPT) -> Segment | None:
        """The segment that goes first, no longer offered; None if none may go in the rounds up to ``last``."""
        while self._heap:
            queued, segment = self._heap[0]
            key = self.key(segment)
            if key == queued and key[0] > last:
                return None
            heapq.heappop(self._heap)
            if segment.queued == queued:
                segment.queued = None
            if key == queued:
                return segment
            self.offer(segment)
        return None

    def key(self, segment: Segment) -> Key | None:
        """Where a segment stands, None if it may not go."""
        if not segment.reach or segment.pins or not segment.is_leaf():
            return None
        referred = bool(segment.handles or segment.children)
        if referred and (segment.irreplaceable or not self.policy.evicts_held):
            return None
        turn = (PROMPT if segment.prompts else HELD) if referred else UNREFERRED
        candidate = EvictionCandidate(_importance(segment), segment.used_at, segment.uses, segment.id)
        return turn, self.policy.order(candidate), segment.id

    def check_integrity(self, segments: Iterable[Segment]) -> None:
        """Raise CacheError if a segment may go, and the heap does not know it or thinks it more precious than it is."""
        entries = {(segment, key) for key, segment in self._heap}
        for segment in segments:
            key = self.key(segment)
            if key is not None and (
                segment.queued is None or segment.queued > key or (segment, segment.queued) not in entries
            ):
                raise CacheError("a segment that may be evicted is not offered")

    def _tidy(self) -> None:
        """Drop what lingers, and be content for as long as it took to gather."""
        kept = []
        for key, segment in self._heap:
            if segment.queued != key:
                continue
            if segment.reach:
                kept.append((key, segment))
            else:
                segment.queued = None
        heapq.heapify(kept)
        self._heap, self._room = kept, max(self.ROOM, 2 * len(kept))


def _importance(segment: Segment) -> float:
    """Of the nearest rated segment from here upwards."""
    at: Segment | None = segment
    while at is not None:
        if at.importance is not None:
            return at.importance
        at = at.parent
    return math.inf
