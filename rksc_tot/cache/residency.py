"""Which KV is resident in the arena: what a path lacks, storing it, and dropping it. Eviction is in ``cache/eviction/``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from rksc_tot.cache.kv_budget.payer import Payer, charge
from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.cache.segment import Segment
from rksc_tot.cache.segment_kv import KVState
from rksc_tot.core.errors import CacheError
from rksc_tot.policies.eviction.base import EvictionPolicy


class SegmentTree(Protocol):
    """The tree whose segments hold the KV."""

    def segments(self) -> Iterator[Segment]:
        """All segments, parents first."""
        ...

    def prune(self, segment: Segment) -> None:
        """Remove ``segment`` and those above it that nothing refers to and that hold no KV; offer the rest for eviction."""
        ...


class EvictionOrder(Protocol):
    """The order of eviction (see :class:`~rksc_tot.cache.eviction.queue.EvictionQueue`)."""

    policy: EvictionPolicy

    def offer(self, segment: Segment) -> None:
        """Add a segment that may have become evictable."""
        ...

    def check_integrity(self, segments: Iterable[Segment]) -> None:
        """Raise CacheError unless each evictable segment is in the order."""
        ...


class KVOffloader(Protocol):
    """Copies KV out of the arena (see :class:`~rksc_tot.cache.offload.arena_offloader.ArenaOffloader`)."""

    def offload(self, segment: Segment) -> None:
        """Copy the KV of ``segment``, of which some is about to be evicted or dropped."""
        ...


class Residency:
    """The KV that the segments of one tree hold in the arena.

    Parameters
    ----------
    tree
        The tree of the segments.
    pool
        The slots of the arena.
    queue
        Gets every segment that may have become evictable.
    offloader
        Copies the KV of segments that a handle refers to before it leaves the arena; None: it is computed again.

    Attributes
    ----------
    compressed
        Whether compression has ever dropped KV.
    changes
        Number of times that KV was dropped or copied back, or a segment was split. A result of :meth:`missing` is valid while
        this number and the path's computed tokens stay the same.
    """

    def __init__(
        self,
        tree: SegmentTree,
        pool: SlotPool,
        queue: EvictionOrder,
        offloader: KVOffloader | None = None,
    ) -> None:
        self.tree = tree
        self.pool = pool
        self.queue = queue
        self.compressed = False
        self.changes = 0
        self._offloader = offloader
        self._clock = 0

    # -- which KV is needed ------------------------------------------------------------------------------------------

    def missing(self, at: Segment, exact: bool = False) -> list[tuple[Segment, int]]:
        """The segments of a path whose KV must be computed, top down, each with the index of its first such token.

        Looks at the segments without KV and one more. ``exact``: tokens whose KV was dropped or is not exact must be computed
        too; all KV above the first of them is present and exact.
        """
        if exact and self.compressed:
            return [(segment, segment.kv.first_inexact()) for segment in at.lineage() if not segment.whole]
        found: list[tuple[Segment, int]] = []
        segment: Segment | None = at
        while segment is not None and segment.parent is not None and not segment.resident:
            found.append((segment, segment.kv.computed))
            segment = segment.parent
        last = len(at.tokens) - 1
        if not found and at.kv.present is not None and at.kv.present[-1:] != [last]:
            found.append((at, last))  # logits come from the last token
        return found[::-1]

    def pin(self, at: Segment) -> None:
        """Protect the path to ``at`` from eviction while a job runs on it."""
        self._clock += 1
        for segment in at.lineage():
            segment.uses += not segment.pins
            segment.pins += 1
            segment.last_used = self._clock

    def unpin(self, at: Segment) -> None:
        """Undo one :meth:`pin`."""
        for segment in at.lineage():
            segment.pins -= 1
        self.tree.prune(at)

    # -- storing KV --------------------------------------------------------------------------------------------------

    def store(self, segment: Segment, slots: list[int], payer: Payer | None = None, first: int | None = None) -> int:
        """Give the next tokens of a segment their slots; returns how many of them are stored for the first time ever.

        Parameters
        ----------
        slots
            One slot for each token. A token that is present already comes with the slot that it has.
        payer
            The account to charge. The earlier tokens of the segment must be charged to the same account (see
            :meth:`~rksc_tot.cache.prefix_tree.PrefixTree.split_by_payer`).
        first
            Index of the first token, as given by :meth:`missing`; None: the first token that was never computed.
        """
        kv = segment.kv
        first = kv.computed if first is None else first
        stop = first + len(slots)
        exact = first <= kv.first_inexact() and (not self.compressed or all(s.whole for s in segment.lineage()[:-1]))
        payer = kv.payer if first < kv.computed else payer
        self._put(segment, first, slots, payer)
        if segment.resident:  # its logits may have been computed from less KV
            segment.logits = segment.states = None
        kv.exact_tokens = max(kv.exact_tokens, stop) if exact else min(kv.exact_tokens, first)
        new = max(0, stop - max(first, kv.ever_computed))
        kv.ever_computed = max(kv.ever_computed, stop)
        return new

    def undo_store(self, segment: Segment, count: int, ever_computed: int) -> None:
        """Undo the storing of the last ``count`` tokens. ``ever_computed``: its value before."""
        self._free(segment, segment.kv.truncate(count))
        segment.kv.ever_computed = ever_computed

    def undo_overwrite(self, segment: Segment, before: KVState) -> None:
        """Undo the storing of other tokens than the next ones. Slots that they had before may have been overwritten."""
        kv, had = segment.kv, set(before.slots)
        self._free(segment, [slot for slot in kv.slots if slot not in had])
        kv.slots, kv.present, kv.computed, exact_tokens, kv.ever_computed = before
        kv.exact_tokens = min(exact_tokens, kv.exact_tokens)

    def restore(self, segment: Segment, slots: list[int], payer: Payer | None) -> None:
        """Give the first tokens of a segment the slots into which their exact KV has been copied.

        A token that is present already comes with the slot that it has, unless heads keep different tokens.
        """
        kv = segment.kv
        if not kv.exact:
            segment.logits = segment.states = None
        if kv.per_head:
            self._free(segment, kv.slots)
            kv.clear()
        self.changes += 1
        self._put(segment, 0, slots, payer)
        kv.exact_tokens = max(kv.exact_tokens, len(slots))

    # -- dropping KV -------------------------------------------------------------------------------------------------

    def offload(self, segment: Segment) -> None:
        """Copy the KV of a segment out of the arena, where there is an offloader, before some of it is dropped or moved."""
        if self._offloader is not None:
            self._offloader.offload(segment)

    def compress(self, segment: Segment, kept: Sequence[int], per_head: bool = False) -> None:
        """Drop the KV of a segment except for the slots with the indexes ``kept``, ascending.

        ``per_head``: each head keeps tokens of its own, whose KV has been moved to these slots after :meth:`offload`. KV that
        is computed below from now on is not exact.
        """
        if len(kept) == len(segment.kv.slots) and not per_head:
            return
        self.compressed = True
        if not per_head:
            self.offload(segment)
        self._free(segment, segment.kv.keep(kept, per_head))
        self.queue.offer(segment)

    def release(self, segment: Segment) -> None:
        """Free all slots of a segment, and mark nothing of it as computed."""
        self._free(segment, segment.kv.slots)
        segment.kv.clear()

    def check_integrity(self) -> None:
        """Raise CacheError unless slots have one owner, payers are charged for them, and KV is stored top down. For tests."""
        taken: list[int] = []
        charged: dict[int, tuple[Payer, int]] = {}  # by id: the payer, and its tokens
        for segment in self.tree.segments():
            kv = segment.kv
            kv.check_integrity(len(segment.tokens))
            taken += kv.slots
            if kv.payer is not None:
                charged[id(kv.payer)] = (kv.payer, len(kv.slots) + charged.get(id(kv.payer), (kv.payer, 0))[1])
            stored = [child for child in segment.children.values() if child.kv.computed]
            if stored and not segment.resident:
                raise CacheError("a token is resident under one that is not")
            if not segment.stored_children.keys() >= set(stored):
                raise CacheError("a segment does not know what is resident below it")
        if any(payer.kv_rows != held for payer, held in charged.values()):
            raise CacheError("an account is charged for more or less than is resident on it")
        self.pool.check_integrity(taken)
        self.queue.check_integrity(self.tree.segments())

    # -- inside ------------------------------------------------------------------------------------------------------

    def _put(self, segment: Segment, first: int, slots: list[int], payer: Payer | None) -> None:
        """Store tokens of a segment and charge ``payer`` for the slots that are new."""
        before = len(segment.kv.slots)
        segment.kv.put(first, slots)
        segment.kv.payer = payer
        charge(payer, len(segment.kv.slots) - before)
        if segment.parent is not None:
            segment.parent.stored_children[segment] = None
        self.queue.offer(segment)

    def _free(self, segment: Segment, slots: list[int]) -> None:
        """Return slots of a segment to the pool and to the account that is charged for them."""
        self.changes += 1
        self.pool.free(slots)
        charge(segment.kv.payer, -len(slots))
