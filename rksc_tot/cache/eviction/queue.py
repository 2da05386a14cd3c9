"""The order in which segments are evicted."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from rksc_tot.cache.segment import QueueKey, Segment
from rksc_tot.core.errors import CacheError
from rksc_tot.policies.eviction.base import EvictionCandidate, EvictionPolicy

UNHELD, HELD, OPEN_PROMPT = range(3)
"""Rounds of eviction: segments that no handle refers to, segments that one does, and the prompts of open searches."""


class EvictionQueue:
    """The leaves that hold KV, as a heap with lazy deletion.

    Heap entries are not removed when a segment changes. An entry is *stale* when its key is no longer the segment's key; stale
    entries are skipped when they reach the top. A segment must be offered again whenever it becomes evictable or its key becomes
    smaller. An offer and a choice cost O(log n) amortised for n leaves, plus the way up to the nearest rated segment; neither
    walks the tree.
    """

    MOST_STALE = 1024  # below this number of entries stale ones are never removed

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self._heap: list[tuple[QueueKey, Segment]] = []
        self._most_entries = self.MOST_STALE

    def offer(self, segment: Segment) -> None:
        """Add a segment that may have become evictable, or whose key may have become smaller."""
        key = self.key(segment)
        if key is None or (segment.queue_key is not None and segment.queue_key <= key):
            return
        segment.queue_key = key
        heapq.heappush(self._heap, (key, segment))
        if len(self._heap) > self._most_entries:
            self._drop_stale()

    def pop(self, last: int = OPEN_PROMPT) -> Segment | None:
        """Remove and return the segment to evict first; None if there is none in the rounds up to ``last``."""
        while self._heap:
            queued, segment = self._heap[0]
            key = self.key(segment)
            if key == queued and key[0] > last:
                return None
            heapq.heappop(self._heap)
            if segment.queue_key == queued:
                segment.queue_key = None
            if key == queued:
                return segment
            self.offer(segment)
        return None

    def rate(self, at: Segment, importance: float, score: float | None = None) -> None:
        """Set the importance of a path, which unrated segments below share. Costs a look at each of these.

        The rating stays until the path is rated again or forgotten, also for a later search on the same path. ``score``: the
        score that the importance was made of.

        Raises
        ------
        CacheError
            If the importance is not a number.
        """
        if math.isnan(importance):
            raise CacheError("an importance is not a number", hint="give the path a finite score")
        at.importance, at.score = importance, score
        rated = [at]
        for segment in rated:
            self.offer(segment)
            rated.extend(child for child in segment.children.values() if child.importance is None)

    def key(self, segment: Segment) -> QueueKey | None:
        """The key of a segment; None if it must not be evicted."""
        if not segment.kv.computed or segment.pins or not segment.is_leaf():
            return None
        held = bool(segment.handles or segment.children)
        if held and (segment.irreplaceable or not self.policy.evicts_held):
            return None
        turn = (OPEN_PROMPT if segment.prompts else HELD) if held else UNHELD
        candidate = EvictionCandidate(_importance(segment), segment.last_used, segment.uses, segment.id)
        return turn, self.policy.order(candidate), segment.id

    def check_integrity(self, segments: Iterable[Segment]) -> None:
        """Raise CacheError unless each evictable segment has a heap entry, with a key no greater than its key now."""
        entries = {(segment, key) for key, segment in self._heap}
        for segment in segments:
            key = self.key(segment)
            if key is not None and (
                segment.queue_key is None or segment.queue_key > key or (segment, segment.queue_key) not in entries
            ):
                raise CacheError("a segment that may be evicted is not in the eviction queue")

    def _drop_stale(self) -> None:
        """Remove stale entries. The next removal comes when the heap has doubled, so an offer costs O(log n) amortised."""
        current = []
        for key, segment in self._heap:
            if segment.queue_key != key:
                continue
            if segment.kv.computed:
                current.append((key, segment))
            else:
                segment.queue_key = None
        heapq.heapify(current)
        self._heap, self._most_entries = current, max(self.MOST_STALE, 2 * len(current))


def _importance(segment: Segment) -> float:
    """Importance of the nearest rated segment from this one upwards; infinite if none is rated."""
    at: Segment | None = segment
    while at is not None:
        if at.importance is not None:
            return at.importance
        at = at.parent
    return math.inf
