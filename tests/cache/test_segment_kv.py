"""The KV of compressed segments under any order of operations, compared with a list of single tokens."""

import random
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import pytest

from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.core.errors import CacheError
from rksc_tot.engine.attention.plan import Piece
from rksc_tot.engine.base import Account
from rksc_tot.engine.jobs.job import Job
from rksc_tot.engine.scheduler.forward_pass import schedule, undo_schedule
from rksc_tot.policies.eviction.rsbcm import RSBCM
from tests.cache.reference import origin, path

ROOM = 12
LIMITS = (6, 9)


@dataclass
class Token:
    """A token that is stored, or was stored and dropped (``slot`` None). ``exact``: computed on the full path. ``mixed``: its
    slot may hold rows of other tokens.
    """

    slot: int | None
    exact: bool
    payer: Account | None
    mixed: bool = False

    @property
    def whole(self):
        return self.slot is not None and self.exact and not self.mixed


@dataclass(eq=False)
class Held:
    segment: Segment
    tokens: list
    prompt: bool = False


class Books:
    """Random operations on a tree, with the expected state of every token."""

    OPERATIONS: ClassVar = {
        "open": 3, "extend": 4, "fork": 4, "drop": 4, "pin": 2, "unpin": 2, "grow": 4, "join": 4, "compute": 16, "make_room": 1,
        "reduce": 8, "restore": 3, "clear": 0.3, "scratch": 1,
    }  # fmt: skip

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.tree = PrefixTree(SlotPool(ROOM), RSBCM())
        self.origins = [self.tree.origin, self.tree.private_root()]
        self.accounts = [*(Account(kv_bytes=limit) for limit in LIMITS), Account()]
        self.known = {}  # Token by (number of the origin, tokens of the path up to it)
        self.held = []
        self.pinned = []

    def play(self, steps):
        names, weights = zip(*self.OPERATIONS.items(), strict=True)
        for name in self.rng.choices(names, weights, k=steps):
            getattr(self, name)()
            self.check()

    # -- paths -------------------------------------------------------------------------------------------------------

    def open(self):
        private = self.rng.random() < 0.3
        at = self.walk(self.origins[private], self.some(7))
        self.hold(at, prompt=not private and self.rng.random() < 0.5)

    def extend(self):
        if self.held:
            self.hold(self.walk(self.one().segment, self.some(4)))

    def fork(self):
        """Add a path that shares the beginning of another one."""
        if self.held:
            at = self.one()
            self.hold(self.walk(origin(at.segment), at.tokens[: self.rng.randint(1, len(at.tokens))]))

    def drop(self):
        if len(self.held) > 2:
            at = self.one()
            self.held.remove(at)
            self.tree.drop(at.segment, prompt=at.prompt)

    def pin(self):
        if self.held and len(self.pinned) < 2:
            self.pinned.append(self.one().segment)
            self.tree.residency.pin(self.pinned[-1])

    def unpin(self):
        if self.pinned:
            self.tree.residency.unpin(self.pinned.pop(0))

    def grow(self):
        """Running work appends a token."""
        if self.pinned:
            at = self.pinned.pop(0)
            token = self.rng.randrange(3)
            lost = self.lost(at, [token])
            self.pinned.append(self.tree.step(at, token, alone=at.pins == 1))
            self.known = {key: known for key, known in self.known.items() if key not in lost}
            self.tree.residency.pin(self.pinned[-1])
            self.tree.residency.unpin(at)

    def join(self):
        for at in [*self.pinned, *(h.segment for h in self.held)]:
            self.tree.join(at)

    # -- what is stored ----------------------------------------------------------------------------------------------

    def compute(self):
        """A pass over one or two paths, like the engine's; sometimes it fails."""
        ends = [*(h.segment for h in self.held), *self.pinned]
        blocks, jobs, evicted = [], [], self.tree.eviction_log.tokens
        most, exact, vain = self.rng.choice((1, 2, 3, 99)), self.rng.random() < 0.5, self.rng.random() < 0.2
        chosen = list(dict.fromkeys(self.rng.choices(ends, k=self.rng.choice((1, 1, 2))))) if ends else []
        for segment in [s for at in chosen for s in at.lineage()] if exact else ():
            if segment.kv.per_head:  # as the engine does to make a path whole
                first = self.keys(segment)[segment.start]
                self.tree.evictor.evict_subtree(segment)
                self.known = {key: token for key, token in self.known.items() if key[: len(first)] != first}
        for at in chosen:
            job = Job(self.tree, at, self.rng.choice(self.accounts), 0)
            job.exact = exact
            jobs.append(job)
            self.tree.residency.pin(at)
        taken = set()
        for job in jobs:
            missing = self.tree.residency.missing(job.base, exact)
            waited = {job.base, *(segment for segment, _ in missing)}
            if taken.isdisjoint(waited):  # no job computes what another one does
                taken |= waited
                with suppress(CacheError):
                    blocks.append(schedule(self.tree, job, job.base, most, missing, (), job.account.kv_bytes))
        before = dict(self.known)
        for made in blocks:
            self.book(made)
        for made in blocks:
            self.check_context(made.block, self.keys(made.job.base))
        if vain:
            undo_schedule(self.tree, blocks)
            for (
                key,
                token,
            ) in before.items():  # a row that was there, and was about to be written otherwise, may have been
                token.exact = token.exact and self.known[key].exact
            self.known = before
        for job in jobs:
            self.tree.residency.unpin(job.base)
            self.tree.drop(job.base)
        self.forget(self.tree.eviction_log.tokens - evicted)

    def book(self, made):
        """The expected state of the rows of a block."""
        block, keys = made.block, self.keys(made.job.base)
        assert block.tokens == [key[-1] for key in keys[block.start : block.start + made.rows]]
        exact = all(self.known[key].whole for key in keys[: block.start])
        assert exact or not (made.job.exact and made.parts)
        payer = made.job.account if made.job.account.kv_bytes is not None else None
        mixed = {key for s in block.lineage if s.kv.per_head for key in keys[s.start : s.end]}
        for key, slot in zip(keys[block.start :], block.slots, strict=False):
            before = self.known.get(key)
            assert before is None or before.slot in (None, slot)
            self.known[key] = Token(slot, exact, payer if before is None else before.payer, key in mixed)
            exact = exact and key not in mixed

    def check_context(self, block, keys):
        """The tokens before a block must be visible to its rows."""
        there = [n for n in range(block.start) if self.known[keys[n]].slot is not None]
        piece = Piece(block, 0, block.start, block.slots, 0)
        assert piece.context(0, block.start) == ([self.known[keys[n]].slot for n in there], there)

    def make_room(self):
        evicted = self.tree.eviction_log.tokens
        with suppress(CacheError):
            self.tree.room.make_room(self.rng.randint(1, ROOM))
        self.forget(self.tree.eviction_log.tokens - evicted)

    def reduce(self):
        stored = [s for s in self.tree.segments() if s.kv.slots]
        if stored:
            segment = self.rng.choice(stored)
            kept = [n for n in range(len(segment.kv.slots)) if self.rng.random() < 0.7]
            mixed = len(kept) < len(segment.kv.slots) and self.rng.random() < 0.2
            there = [self.known[key] for key in self.keys(segment)[segment.start : segment.start + segment.kv.computed]]
            self.tree.residency.compress(segment, kept, mixed)
            for n, token in enumerate([token for token in there if token.slot is not None]):
                token.slot = token.slot if n in kept else None
            for token in there:
                token.mixed = bool(kept) and (token.mixed or mixed)

    def restore(self):
        """Restore KV that was computed on the full path."""
        paths = [at.segment for at in self.held]
        for segment in self.rng.choice(paths).lineage() if paths else ():
            above = segment.parent.parent is None or segment.parent.resident
            first, count = segment.kv.first_inexact(), self.rng.randint(1, len(segment.tokens))
            if (
                not above
                or first >= count
                or (segment.kv.per_head and segment.kv.computed > count)
                or self.rng.random() < 0.5
            ):
                continue
            has = {} if segment.kv.per_head else segment.kv.slots_of(range(count))
            payer = segment.kv.payer if segment.kv.computed else self.rng.choice((None, *self.accounts[:2]))
            fresh = count - len(has)
            if self.tree.residency.pool.available < fresh or (payer and payer.kv_rows + fresh > payer.kv_bytes):
                continue
            taken = self.tree.residency.pool.allocate(fresh)
            slots = [has[n] if n in has else taken.pop() for n in range(count)]
            self.tree.residency.restore(segment, slots, payer)
            keys = self.keys(segment)[segment.start :]
            self.known |= {key: Token(slot, True, payer) for key, slot in zip(keys, slots, strict=False)}

    def clear(self):
        self.tree.evictor.clear()
        self.forget()

    def scratch(self):
        """Ask a question after a path, and drop it."""
        if self.held:
            at = self.one().segment
            asked = self.walk(at, self.some(3))
            self.tree.hold(asked)
            self.tree.drop(asked)
            self.tree.discard(asked, at.end)
            self.forget()

    # -- what should be so -------------------------------------------------------------------------------------------

    def check(self):
        self.tree.check_integrity()
        assert self.reached() == self.known.keys()
        assert all(path(h.segment) == h.tokens for h in self.held)
        for segment in self.tree.segments():
            self.check_segment(segment)
        taken = [token.slot for token in self.known.values() if token.slot is not None]
        assert len(set(taken)) == len(taken) == self.tree.residency.pool.used <= ROOM
        for account in self.accounts:
            assert account.kv_rows == sum(t.payer is account and t.slot is not None for t in self.known.values())
        for at in [*(h.segment for h in self.held), *self.pinned]:
            self.check_missing(at)

    def check_segment(self, segment):
        tokens = [self.known[key] for key in self.keys(segment)[segment.start : segment.start + segment.kv.computed]]
        names = range(segment.kv.computed) if segment.kv.present is None else segment.kv.present
        kept = {n: token.slot for n, token in enumerate(tokens) if token.slot is not None}
        assert dict(zip(names, segment.kv.slots, strict=True)) == kept
        assert [token.exact for token in tokens] == [n < segment.kv.exact_tokens for n in range(segment.kv.computed)]
        assert all(token.mixed == segment.kv.per_head for token in tokens)
        assert segment.whole == (segment.resident and all(token.whole for token in tokens))
        assert all(token.payer is segment.kv.payer for token in tokens)

    def check_missing(self, at):
        keys = self.keys(at)
        gone = [n for n, key in enumerate(keys) if key not in self.known]
        if not gone and self.known[keys[-1]].slot is None:
            gone = [len(keys) - 1]  # there are no logits without it
        flawed = [n for n, key in enumerate(keys) if key not in self.known or not self.known[key].whole]
        for exact, wanted in ((False, gone), (True, flawed if self.tree.residency.compressed else gone)):
            assert [s.start + first for s, first in self.tree.residency.missing(at, exact)][:1] == wanted[:1]

    # -- inside ------------------------------------------------------------------------------------------------------

    def some(self, most):
        return [self.rng.randrange(3) for _ in range(self.rng.randint(1, most))]

    def walk(self, at, tokens):
        lost = self.lost(at, tokens)
        found = self.tree.walk(at, tokens)
        self.known = {key: known for key, known in self.known.items() if key not in lost}
        return found

    def lost(self, at, tokens):
        """Tokens dropped because a walk splits tokens whose rows heads have mixed."""
        whole = (self.origins.index(origin(at)), *path(at), *tokens)
        found = set()
        for segment in self.tree.segments():
            if segment.kv.per_head:
                keys = self.keys(segment)
                first, last = keys[segment.start], keys[-1]
                if whole[: len(first)] == first and whole[: len(last)] != last:
                    found |= {key for key in self.known if key[: len(first)] == first}
        return found

    def one(self):
        return self.rng.choice(self.held)

    def hold(self, segment, prompt=False):
        self.tree.hold(segment, prompt=prompt)
        self.held.append(Held(segment, path(segment), prompt))

    def keys(self, segment):
        """Of all tokens of a path, first to last."""
        first, tokens = self.origins.index(origin(segment)), path(segment)
        return [(first, *tokens[: n + 1]) for n in range(len(tokens))]

    def reached(self):
        return {key for s in self.tree.segments() for key in self.keys(s)[s.start : s.start + s.kv.computed]}

    def forget(self, evicted=None):
        """Record evictions: ends of paths that no work needs. ``evicted``: number of freed slots."""
        gone = self.known.keys() - self.reached()
        assert not gone & {key for at in self.pinned for key in self.keys(at)}
        assert all(key[:n] not in gone for key in self.known.keys() - gone for n in range(2, len(key)))
        slots = sum(self.known.pop(key).slot is not None for key in gone)
        assert evicted is None or slots == evicted


@pytest.mark.parametrize(
    "seed", [*range(50), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(50, 1000))]
)
def test_in_any_order_of_operations_segments_know_which_tokens_are_present_and_exact(seed):
    Books(seed).play(150)
