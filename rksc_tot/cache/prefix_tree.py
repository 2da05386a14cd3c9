"""The prefix tree: every token of every path once.

::

    (origin) ── "4 5 6 10\\n" ──┬── "10 - 4 = 6 …\\n" ──┬── …        a segment: tokens, and their KV
                               │        ▲ handle      └── …
                               └── "5 * 6 = 30 …\\n"

No two children of a segment begin with the same token, so equal paths are one path: a token that several branches write is
stored, and computed, once. A handle always ends at the end of a segment. When a segment is split, its lower part stays the same
object, so handles and pins stay valid.

Which KV is resident is said in :mod:`rksc_tot.cache.residency`, what is evicted in :mod:`rksc_tot.cache.eviction.when_to_evict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rksc_tot.cache.eviction.evict import Evictor
from rksc_tot.cache.eviction.log import EvictionLog
from rksc_tot.cache.eviction.queue import EvictionQueue
from rksc_tot.cache.eviction.when_to_evict import KVCompressor, RoomMaker
from rksc_tot.cache.kv_budget.payer import Payer
from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.cache.residency import KVOffloader, Residency
from rksc_tot.cache.segment import Segment
from rksc_tot.core.errors import CacheError
from rksc_tot.policies.eviction.base import EvictionPolicy

__all__ = ["PrefixTree", "Segment"]


class PrefixTree:
    """All segments, and the handles that refer to them.

    Parameters
    ----------
    pool, offloader
        See :class:`~rksc_tot.cache.residency.Residency`.
    policy
        The order in which KV is evicted.
    compressor
        See :class:`~rksc_tot.cache.eviction.when_to_evict.RoomMaker`.
    isolated
        Whether each prompt gets an origin of its own, so that searches share no KV. The paths of a prompt are then forgotten
        when the prompt is closed and nothing refers to them.

    Attributes
    ----------
    residency
        Which KV of the tree is in the arena.
    eviction_queue, eviction_log, evictor, room
        The order of eviction, its counts, its execution, and the decision to evict.
    origin
        The segment without tokens from which shared paths start.
    """

    def __init__(
        self,
        pool: SlotPool,
        policy: EvictionPolicy,
        *,
        isolated: bool = False,
        compressor: KVCompressor | None = None,
        offloader: KVOffloader | None = None,
    ) -> None:
        self.isolated = isolated
        self.eviction_queue = EvictionQueue(policy)
        self.eviction_log = EvictionLog()
        self.residency = Residency(self, pool, self.eviction_queue, offloader)
        self.evictor = Evictor(self.residency, self.eviction_queue, self.eviction_log)
        self.room = RoomMaker(self.residency, self.eviction_queue, self.evictor, compressor)
        self._made = 0
        self._origins: dict[Segment, None] = {}  # origins with at least one path
        self.origin = self._segment(None, [], 0)

    # -- paths -------------------------------------------------------------------------------------------------------

    def private_root(self, irreplaceable: bool = False) -> Segment:
        """A new origin. Its paths share nothing with paths from other origins, even where tokens are equal.

        The origin is forgotten with its last path.

        ``irreplaceable``: the KV of the path that is walked from the origin is not what its tokens alone would give. It is not
        evicted while a handle refers to it or to a path below. Paths below it are evicted, and computed again, like any other.
        """
        origin = self._segment(None, [], 0)
        origin.irreplaceable = irreplaceable
        return origin

    def walk(self, at: Segment, tokens: Sequence[int]) -> Segment:
        """The segment that ends where ``tokens`` after ``at`` end. Segments are added and split as needed."""
        i = 0
        while i < len(tokens):
            child = at.children.get(tokens[i])
            if child is None:
                return self._add(at, list(tokens[i:]))
            same = 1
            while same < len(child.tokens) and i + same < len(tokens) and child.tokens[same] == tokens[i + same]:
                same += 1
            if same < len(child.tokens) and child.kv.per_head:  # its slots cannot be told apart by token
                self.evictor.evict_subtree(child)
                continue
            at = child if same == len(child.tokens) else self._split(child, same)
            i += same
        return at

    def step(self, at: Segment, token: int, alone: bool) -> Segment:
        """The segment that ends after ``token``, which was sampled at the end of ``at``.

        ``alone``: only the caller's branch ends at ``at``, so the segment itself may grow.
        """
        if alone and not at.children and not at.handles and at.parent is not None:
            at.tokens.append(token)
            at.end += 1
            at.logits = at.states = None
            return at
        return self.walk(at, (token,))

    def join(self, at: Segment) -> None:
        """Make one segment of ``at`` and the segments above that differ from it only in their tokens."""
        while (high := at.parent) is not None and high.parent is not None and high.continues_as(at):
            at.kv.prepend(high.kv)
            at.tokens, at.start, at.parent = high.tokens + at.tokens, high.start, high.parent
            at.uses = max(high.uses, at.uses)
            high.parent.children[high.tokens[0]] = at
            high.parent.stored_children.pop(high, None)
            if at.kv.computed:
                high.parent.stored_children[at] = None
            self.eviction_queue.offer(at)

    def split_by_payer(self, segment: Segment, payer: Payer | None) -> None:
        """Split a segment before its first missing token if another account than ``payer`` is charged for the tokens above."""
        if segment.kv.computed and not segment.resident and segment.kv.payer is not payer:
            self._split(segment, segment.kv.computed)

    def segments(self) -> Iterator[Segment]:
        """All segments, parents first."""
        stack = [child for origin in self._origins for child in origin.children.values()]
        while stack:
            segment = stack.pop()
            yield segment
            stack.extend(segment.children.values())

    # -- handles -----------------------------------------------------------------------------------------------------

    def hold(self, at: Segment, prompt: bool = False) -> None:
        """Count a handle at the end of ``at``. ``prompt``: it is the prompt of an open search."""
        at.handles += 1
        if prompt:
            for segment in at.lineage():
                segment.prompts += 1

    def drop(self, at: Segment, prompt: bool = False) -> None:
        """Undo one :meth:`hold`."""
        at.handles -= 1
        lineage = at.lineage()
        if prompt:
            for segment in lineage:
                segment.prompts -= 1
        self.prune(at)
        if prompt and self._closed(at):
            self.discard(lineage[0], 0)

    def discard(self, at: Segment, floor: int) -> None:
        """Evict unreferenced segments at and below ``at``, and above it down to position ``floor``.."""
        for segment in reversed(at.subtree()):
            if segment.kv.computed and segment.unreferenced:
                self.evictor.evict(segment)
        parent = at.parent
        while parent is not None and parent.start >= floor and parent.unreferenced:
            above = parent.parent
            if parent.kv.computed:  # otherwise it has been removed already
                self.evictor.evict(parent)
            parent = above

    def prune(self, segment: Segment) -> None:
        """Remove ``segment`` and those above it that nothing refers to and that hold no KV; offer the rest for eviction.

        In an isolated tree, unreferenced segments of a closed prompt are removed with their KV.
        """
        at = segment
        if not (at.handles or at.pins):
            at.logits = at.states = None
        closed = self._closed(at)
        while (parent := at.parent) is not None and (closed or not at.kv.computed) and at.unreferenced:
            if at.kv.computed:
                self.residency.release(at)
            del parent.children[at.tokens[0]]
            parent.stored_children.pop(at, None)
            at.kv.drop_offloaded()
            at = parent
        if at.parent is None and not at.children:
            self._origins.pop(at, None)
        while not at.kv.computed and at.parent is not None:
            at = at.parent
        self.eviction_queue.offer(at)  # the lowest segment of the path with KV: those above it are no leaves

    def check_integrity(self) -> None:
        """Raise CacheError unless links, pins and prompts of all segments fit together, and the residency is intact."""
        for segment in self.segments():
            parent = segment.parent
            if parent is None or parent.children.get(segment.tokens[0]) is not segment or segment.start != parent.end:
                raise CacheError("a segment hangs in the wrong place")
            if segment.end != segment.start + len(segment.tokens):
                raise CacheError("a segment does not know where it ends")
            if segment.pins < sum(child.pins for child in segment.children.values()):
                raise CacheError("a path is pinned below but not above")
            here = segment.prompts - sum(child.prompts for child in segment.children.values())
            if not 0 <= here <= segment.handles:
                raise CacheError("a prompt is open below but not above, or without a handle")
        self.residency.check_integrity()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _segment(self, parent: Segment | None, tokens: list[int], start: int) -> Segment:
        self._made += 1
        return Segment(parent, tokens, start, self._made)

    def _add(self, at: Segment, tokens: list[int]) -> Segment:
        child = self._segment(at, tokens, at.end)
        at.children[tokens[0]] = child
        if at.parent is None:
            self._origins[at] = None
            child.irreplaceable = at.irreplaceable
        return child

    def _split(self, low: Segment, at: int) -> Segment:
        """Cut ``low`` before its token ``at``. Returns the new upper part; ``low`` keeps the rest and its identity."""
        parent = low.parent
        if parent is None or not 0 < at < len(low.tokens):
            raise CacheError(f"cannot split a segment of {len(low.tokens)} tokens at {at}")
        self.residency.changes += 1
        high = self._segment(parent, low.tokens[:at], low.start)
        low.kv.split(high.kv, at)
        high.pins, high.prompts, high.irreplaceable = low.pins, low.prompts, low.irreplaceable
        high.last_used, high.uses = low.last_used, low.uses
        low.tokens, low.start, low.parent = low.tokens[at:], low.start + at, high
        parent.children[high.tokens[0]] = high
        high.children[low.tokens[0]] = low
        for above, below in ((parent, high), (high, low)):
            if below.kv.computed:
                above.stored_children[below] = None
        parent.stored_children.pop(low, None)
        if not low.kv.computed:
            self.prune(low)
        return high

    def _closed(self, at: Segment) -> bool:
        """Whether the prompt of an isolated path is closed, so that no later search can use its KV."""
        return self.isolated and not any(segment.prompts for segment in at.lineage()[:1])
