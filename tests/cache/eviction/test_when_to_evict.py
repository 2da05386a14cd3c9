"""Room for new tokens: evictions when there is none, and a budget that holds after every call."""

import random

import pytest

from rksc_tot.core.errors import CacheError
from rksc_tot.policies.eviction.base import NoEviction
from rksc_tot.policies.eviction.rsbcm import RSBCM
from tests.cache.small_tree import ROW_BYTES, Offloads, hung, make_tree, store
from tests.seeds import seeds


class Halving:
    """A compressor that drops every other token of each held segment."""

    def __init__(self):
        self.asked = []

    def make_room(self, residency, count):
        self.asked.append(count)
        for segment in residency.tree.segments():
            if not segment.pins:
                residency.compress(segment, range(0, len(segment.kv.slots), 2))


def test_eviction_is_leaf_first_and_spares_pinned_paths():
    tree = make_tree(4)
    trunk = hung(tree, tree.origin, [1, 2])
    old, new = (hung(tree, trunk, [token]) for token in (3, 4))
    tree.residency.pin(new)
    tree.room.make_room(1)
    assert (trunk.resident, old.resident, new.resident) == (True, False, True)


def test_no_room_is_an_error_that_names_the_bytes_that_are_needed():
    tree = make_tree(4)
    tree.residency.pin(hung(tree, tree.origin, [1, 2, 3]))
    tree.room.make_room(1)
    with pytest.raises(
        CacheError, match=r"2 more tokens do not fit the KV budget of 4 tokens, 3 of which running branches"
    ):
        tree.room.make_room(2)
    with pytest.raises(CacheError, match=r"raise the KV budget, by 20 bytes at least"):
        tree.room.make_room(3)


def test_segments_without_a_handle_go_before_segments_with_one():
    tree = make_tree(3)
    kept, dropped = hung(tree, tree.origin, [1]), hung(tree, tree.origin, [2])
    tree.drop(dropped)
    tree.room.make_room(2)
    assert kept.resident


def test_a_compressor_is_called_once_and_before_any_held_segment_is_evicted():
    compressor = Halving()
    tree = make_tree(8, compressor=compressor)
    held = hung(tree, tree.origin, [1, 2, 3, 4])
    unheld = hung(tree, tree.origin, [5, 6])
    tree.drop(unheld)
    tree.room.make_room(4)
    assert (compressor.asked, held.whole, unheld.resident) == ([], True, False)
    tree.room.make_room(6)
    assert (compressor.asked, held.resident, len(held.kv.slots)) == ([6], True, 2)
    tree.room.make_room(7)
    assert (compressor.asked, held.resident, len(held.kv.slots)) == ([6, 7], True, 1)
    tree.room.make_room(8)
    assert (compressor.asked, held.resident) == ([6, 7, 8], False)


# -- the budget, at random -----------------------------------------------------------------------------------------------


class Program:
    """Random paths, held, pinned and visited within a small budget, with or without a compressor and an offloader."""

    LIMIT = 10

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.offloads = Offloads()
        self.tree = make_tree(
            self.LIMIT,
            self.rng.choice((RSBCM(), NoEviction())),
            compressor=self.rng.choice((None, Halving())),
            offloader=self.offloads,
        )
        self.held = []
        self.pinned = []

    def step(self):
        act = self.rng.choice(
            (self.open, self.open, self.visit, self.visit, self.visit, self.pin, self.unpin, self.drop)
        )
        act()
        self.tree.check_integrity()
        assert self.tree.residency.pool.used <= self.LIMIT
        assert all(not self.tree.residency.missing(at) or at.kv.present is not None for at in self.pinned)

    def open(self):
        at = self.rng.choice([self.tree.origin, *self.held])
        self.held.append(self.tree.walk(at, [self.rng.randrange(3) for _ in range(self.rng.randint(1, 4))]))
        self.tree.hold(self.held[-1])

    def drop(self):
        if self.held:
            self.tree.drop(self.held.pop(self.rng.randrange(len(self.held))))

    def visit(self):
        """Each ``make_room`` frees the requested slots and keeps the path in use, or names the missing bytes."""
        if not self.held:
            return False
        at, residency = self.rng.choice(self.held), self.tree.residency
        residency.pin(at)
        slots = {segment: segment.kv.slots[:] for segment in (*at.lineage(), *self.in_use())}
        try:
            for segment, first in residency.missing(at):
                count = len(segment.tokens) - first
                self.tree.room.make_room(count)
                assert residency.pool.available >= count
                if first < segment.kv.computed:  # the last token, which was dropped
                    residency.store(segment, residency.pool.allocate(1), first=first)
                else:
                    store(self.tree, segment, count)
        except CacheError as full:
            assert f"by {(count - residency.pool.available) * ROW_BYTES} bytes at least" in str(full)
            assert residency.pool.available < count
            return False
        finally:
            assert all(segment.kv.slots[: len(had)] == had for segment, had in slots.items())
            residency.unpin(at)
        return True

    def in_use(self):
        return [segment for at in self.pinned for segment in at.lineage()]

    def pin(self):
        if len(self.pinned) < 2 and self.held:
            at = self.rng.choice(self.held)
            if not self.tree.residency.missing(at):
                self.tree.residency.pin(at)
                self.pinned.append(at)

    def unpin(self):
        if self.pinned:
            self.tree.residency.unpin(self.pinned.pop())


@pytest.mark.parametrize("seed", seeds(20, 300))
def test_in_any_order_of_visits_the_budget_holds_and_what_runs_keeps_its_kv(seed):
    program = Program(seed)
    for _ in range(120):
        program.step()
