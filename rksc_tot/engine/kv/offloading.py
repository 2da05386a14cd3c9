"""Between the books and an offload store: what leaves the arena is stowed, what comes back is copied where that is cheaper."""

from __future__ import annotations

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.offload.store import OffloadedRecord, OffloadStore
from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.cache.segment import Payer
from rksc_tot.engine.jobs.job import Job


class Offloader:
    """KV that left the arena and that somebody may come back to, where it is what the full path gives."""

    def __init__(self, store: OffloadStore, tree: PrefixTree, arena: Arena) -> None:
        self.store = store
        self.tree = tree
        self.arena = arena
        tree.shelve = self.stow

    def stow(self, segment: Segment) -> None:
        """Keep a copy of what is resident of a segment, unless there is one or it is not exact."""
        if segment.kept is not None or not segment.exact or not segment.reach:
            return
        if segment.stowed is not None and not segment.stowed.gone and segment.stowed.tokens >= segment.reach:
            return
        if segment.stowed is not None:
            segment.stowed.drop()
        segment.stowed = self.store.stow(self.arena, segment.slots)

    def prefetch(self, job: Job) -> None:
        """Have the store begin to read what a job will want."""
        for tip in job.wanted():
            for segment, first in self.tree.missing(tip, job.exact):
                if stowed := _stowed(segment, first):
                    self.store.prefetch(stowed)

    def fetch(self, job: Job, missing: list[tuple[Segment, int]], limit: int | None) -> None:
        """Copy back what is ``missing`` of a path, as far as that is cheaper than to compute it.

        Raises
        ------
        CacheError
            If there is no room.
        """
        for segment, first in missing:
            above = segment.parent
            if above is not None and above.parent is not None and not above.resident:
                break
            stowed = _stowed(segment, first)
            if stowed is None or (segment.mixed and segment.reach > stowed.tokens):
                continue
            if not self.store.costs.copy_is_cheaper(stowed.tokens, stowed.tokens - first):
                continue
            if self._copy_back(segment, stowed, job.payer, limit):
                job.account.ledger.restored_tokens += stowed.tokens - first

    def _copy_back(self, segment: Segment, stowed: OffloadedRecord, payer: Payer | None, limit: int | None) -> bool:
        tree, tokens = self.tree, range(stowed.tokens)
        has = {} if segment.mixed else segment.slots_of(tokens)
        fresh = len(tokens) - len(has)
        payer = segment.payer if segment.reach else payer
        if limit is not None and payer is not None:
            tree.make_room_within(fresh, limit, payer)
        tree.make_room(fresh)
        taken = iter(new := tree.pool.allocate(fresh))
        slots = [has[n] if n in has else next(taken) for n in tokens]
        if self.store.restore(stowed, self.arena, slots):
            tree.restore(segment, slots, payer)
            return True
        tree.pool.free(new)
        return False


def _stowed(segment: Segment, first: int) -> OffloadedRecord | None:
    """What is stowed of a segment, if that has more than its first tokens."""
    found = segment.stowed
    return found if isinstance(found, OffloadedRecord) and not found.gone and found.tokens > first else None
