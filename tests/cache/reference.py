"""A reference cache of plain lists. It finds the next eviction by a search of all segments."""

import math
from dataclasses import dataclass

from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.core.errors import CacheError
from rksc_tot.policies.eviction.base import EvictionCandidate
from rksc_tot.policies.eviction.registry import EVICTION


def path(segment):
    return [token for s in segment.lineage() for token in s.tokens]


def origin(segment):
    while segment.parent is not None:
        segment = segment.parent
    return segment


def compute(tree, segment, evict=None):
    """Make a path resident the way the engine does; ``evict`` makes room."""
    tree.residency.pin(segment)
    try:
        for part, first in tree.residency.missing(segment):
            count = len(part.tokens) - first
            (evict or tree.room.make_room)(count)
            tree.residency.store(part, tree.residency.pool.allocate(count))
    finally:
        tree.residency.unpin(segment)


@dataclass
class Held:
    segment: object
    tokens: list
    prompt: bool = False
    kept: bool = False
    slots: object = None  # of a kept path, once it is resident


class Reference:
    """Operations on both; :meth:`check` compares them."""

    def __init__(self, policy, limit):
        self.limit = limit
        self.tree = PrefixTree(SlotPool(limit), EVICTION.make(policy))
        self.held = []
        self.pinned = []
        self.ratings = {}
        self.private_paths = []  # (private origin, path that is kept)
        self.evictions = self.recomputed = 0

    # -- operations --------------------------------------------------------------------------------------------------

    def open(self, tokens):
        self._hold(self.tree.walk(self.tree.origin, tokens), tokens, prompt=True)

    def private_root(self, tokens, keep):
        private = self.tree.private_root(irreplaceable=keep)
        self._hold(self.tree.walk(private, tokens), tokens, kept=keep)
        if keep:
            self.private_paths.append((private, tokens))

    def extend(self, at, tokens):
        self._hold(self.tree.walk(at.segment, tokens), at.tokens + tokens)

    def fork(self, at, length):
        tokens = at.tokens[:length]
        self._hold(self.tree.walk(origin(at.segment), tokens), tokens)
        if at.slots is not None:  # what is kept stays, however it is referred to
            self.held[-1].slots = at.slots[:length]

    def step(self, at, token):
        following = self.tree.step(at.segment, token, alone=True)
        assert following is not at.segment  # a handle stands there
        self._hold(following, [*at.tokens, token])

    def drop(self, at):
        self.held.remove(at)
        self.tree.drop(at.segment, prompt=at.prompt)

    def rate(self, at, score, depth):
        importance = self.tree.eviction_queue.policy.importance(score, depth)
        self.tree.eviction_queue.rate(at.segment, importance)
        self.ratings[at.segment] = importance

    def visit(self, at):
        """Compute a path; each eviction must equal that of a full search. Returns whether it was possible."""
        stored = {tuple(path(s)): s.kv.ever_computed for s in at.segment.lineage()}
        missing = {tuple(path(s)): (first, len(s.tokens)) for s, first in self.tree.residency.missing(at.segment)}
        before = self.recomputed
        try:
            self._compute(at.segment)
        except CacheError:
            assert self.victim(at.segment) is None
            return False
        again = sum(max(0, stored[end] - first) for end, (first, _) in missing.items())
        assert self.recomputed - before == again
        if at.kept and at.slots is None:
            at.slots = [slot for s in at.segment.lineage() for slot in s.kv.slots]
        return True

    def pin(self, at):
        if self.visit(at):
            self.tree.residency.pin(at.segment)
            self.pinned.append(at)

    def unpin(self, at):
        self.pinned.remove(at)
        self.tree.residency.unpin(at.segment)

    def clear(self):
        referred = self._above(self.held) | self._above(self.pinned)
        staying = {s for s in self.tree.segments() if s.kv.slots and s in referred}
        self.tree.evictor.clear()
        assert {s for s in self.tree.segments() if s.kv.slots} == staying

    # -- what should be so -------------------------------------------------------------------------------------------

    def victim(self, running=None):
        """The segment to be evicted next while work runs on ``running``; None if no segment may be evicted."""
        pinned = self._above(self.pinned) | set(running.lineage() if running else [])
        held = self._above(self.held)
        prompts = self._above(h for h in self.held if h.prompt)

        def place(s):
            rated = [self.ratings[a] for a in s.lineage() if a in self.ratings]
            seen = EvictionCandidate(rated[-1] if rated else math.inf, s.last_used, s.uses, s.id)
            return (s in held) + (s in prompts), self.tree.eviction_queue.policy.order(seen), s.id

        may = [
            s for s in self.tree.segments()
            if s.kv.slots and s not in pinned and not any(c.kv.slots for c in s.children.values())
            and not (s in held and (s.irreplaceable or not self.tree.eviction_queue.policy.evicts_held))
        ]  # fmt: skip
        return min(may, key=place, default=None)

    def check(self):
        self.tree.check_integrity()
        segments = list(self.tree.segments())
        slots = [slot for s in segments for slot in s.kv.slots]
        assert len(set(slots)) == len(slots) == self.tree.residency.pool.used <= self.limit
        assert all(path(h.segment) == h.tokens for h in [*self.held, *self.pinned])
        assert all(s.resident for h in self.pinned for s in h.segment.lineage())
        ends = [(origin(s), *path(s)) for s in segments]
        assert len(set(ends)) == len(ends)
        for s in segments:
            assert s.handles or s.pins or s.children or s.kv.slots
            assert not s.irreplaceable or self._kept(s)
        for h in self.held:
            if h.slots is not None:
                assert [slot for s in h.segment.lineage() for slot in s.kv.slots] == h.slots

    # -- inside ------------------------------------------------------------------------------------------------------

    def _hold(self, segment, tokens, prompt=False, kept=False):
        self.tree.hold(segment, prompt=prompt)
        self.held.append(Held(segment, tokens, prompt, kept))

    def _kept(self, segment):
        tokens, top = path(segment), origin(segment)
        return any(top is private and kept[: len(tokens)] == tokens for private, kept in self.private_paths)

    def _above(self, held):
        return {s for h in held for s in h.segment.lineage()}

    def _compute(self, segment):
        tree = self.tree
        tree.residency.pin(segment)
        try:
            for part, first in tree.residency.missing(segment):
                count = len(part.tokens) - first
                self._evict(count, segment)
                self.recomputed += count - tree.residency.store(part, tree.residency.pool.allocate(count))
        finally:
            tree.residency.unpin(segment)

    def _evict(self, count, running):
        while self.tree.residency.pool.available < count:
            expected = self.victim(running)
            resident = {s for s in self.tree.segments() if s.kv.slots}
            self.tree.room.make_room(self.tree.residency.pool.available + 1)  # one more, so one victim
            assert resident - {s for s in self.tree.segments() if s.kv.slots} == {expected}
            self.evictions += 1
