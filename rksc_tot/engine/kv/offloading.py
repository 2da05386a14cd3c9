"""Copies offloaded KV back into the arena where that is cheaper than computing it."""

from __future__ import annotations

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.kv_budget.payer import Payer
from rksc_tot.cache.offload.store import OffloadedRecord, OffloadStore
from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.cache.segment import Segment
from rksc_tot.engine.jobs.job import Job


class Restorer:
    """Restores exact KV that :class:`~rksc_tot.cache.offload.arena_offloader.ArenaOffloader` put into a store."""

    def __init__(self, store: OffloadStore, tree: PrefixTree, arena: Arena) -> None:
        self.store = store
        self.tree = tree
        self.arena = arena

    def prefetch(self, job: Job) -> None:
        """Let the store begin to read the KV that a job will need."""
        for tip in job.wanted():
            for segment, first in self.tree.residency.missing(tip, job.exact):
                if record := _record(segment, first):
                    self.store.prefetch(record)

    def fetch(self, job: Job, missing: list[tuple[Segment, int]], limit: int | None) -> None:
        """Copy back KV of a path that is ``missing``, where that is cheaper than computing it.

        ``limit``: most tokens that may be resident on the job's account; None: no limit.

        Raises
        ------
        CacheError
            If there is no room.
        """
        for segment, first in missing:
            above = segment.parent
            if above is not None and above.parent is not None and not above.resident:
                break
            record = _record(segment, first)
            if record is None or (segment.kv.per_head and segment.kv.computed > record.tokens):
                continue
            if not self.store.costs.copy_is_cheaper(record.tokens, record.tokens - first):
                continue
            if self._restore(segment, record, job.payer, limit):
                job.account.ledger.restored_tokens += record.tokens - first

    def _restore(self, segment: Segment, record: OffloadedRecord, payer: Payer | None, limit: int | None) -> bool:
        """Copy a record back; False if the store has dropped it."""
        residency, kv, tokens = self.tree.residency, segment.kv, range(record.tokens)
        present = {} if kv.per_head else kv.slots_of(tokens)
        fresh = len(tokens) - len(present)
        payer = kv.payer if kv.computed else payer
        taken = iter(new := self.tree.room.allocate(fresh, payer, limit))
        slots = [present[n] if n in present else next(taken) for n in tokens]
        if self.store.restore(record, self.arena, slots):
            residency.restore(segment, slots, payer)
            return True
        residency.pool.free(new)
        return False


def _record(segment: Segment, first: int) -> OffloadedRecord | None:
    """The offloaded KV of a segment, if it covers more than the first ``first`` tokens."""
    found = segment.kv.offloaded
    return found if isinstance(found, OffloadedRecord) and not found.gone and found.tokens > first else None
