"""Residency: missing tokens, evictions, and a budget that holds after every call."""

import random

import pytest

from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.cache.slot_pool import SlotPool
from rksc_tot.core.errors import CacheError
from rksc_tot.policies.eviction.base import NoEviction
from rksc_tot.policies.eviction.rsbcm import RSBCM
from tests.cache.reference import compute
from tests.seeds import seeds

ROW_BYTES = 10


def make_tree(limit=12, policy=None, **options):
    return PrefixTree(SlotPool(limit, ROW_BYTES), policy or RSBCM(), **options)


def hung(tree, parent, tokens):
    """A path that a handle holds, resident."""
    segment = tree.walk(parent, tokens)
    tree.hold(segment)
    compute(tree, segment)
    return segment


def store(tree, segment, count, first=None):
    """Store the next ``count`` tokens of a segment."""
    return tree.residency.store(segment, tree.residency.pool.allocate(count), first=first)


class Offloads:
    """An offloader that only records its calls."""

    def __init__(self):
        self.seen = []

    def offload(self, segment):
        assert segment.kv.slots
        self.seen.append(segment)


class Halving:
    """A compressor that drops every other token of each held segment."""

    def __init__(self):
        self.asked = []

    def make_room(self, residency, count):
        self.asked.append(count)
        for segment in residency.tree.segments():
            if not segment.pins:
                residency.compress(segment, range(0, len(segment.kv.slots), 2))


# -- missing -------------------------------------------------------------------------------------------------------------


def test_missing_names_the_first_token_without_kv_of_each_segment_top_down():
    tree = make_tree()
    trunk = tree.walk(tree.origin, [1, 2, 3])
    leaf = tree.walk(trunk, [4, 5])
    tree.hold(leaf)
    assert tree.residency.missing(leaf) == [(trunk, 0), (leaf, 0)]
    store(tree, trunk, 2)
    assert tree.residency.missing(leaf) == [(trunk, 2), (leaf, 0)]
    store(tree, trunk, 1)
    store(tree, leaf, 1)
    assert tree.residency.missing(leaf) == [(leaf, 1)]
    store(tree, leaf, 1)
    assert tree.residency.missing(leaf) == tree.residency.missing(leaf, exact=True) == []


def test_the_last_token_of_a_resident_path_is_missing_once_its_kv_was_dropped():
    tree = make_tree()
    leaf = hung(tree, tree.origin, [1, 2, 3])
    tree.residency.compress(leaf, [0, 2])
    assert tree.residency.missing(leaf) == []
    tree.residency.compress(leaf, [0])
    assert tree.residency.missing(leaf) == [(leaf, 2)]


def test_exact_missing_names_dropped_tokens_and_tokens_computed_after_them():
    tree = make_tree()
    trunk = hung(tree, tree.origin, [1, 2, 3])
    tree.residency.compress(trunk, [0, 2])
    leaf = hung(tree, trunk, [4])
    assert tree.residency.missing(leaf) == []
    assert tree.residency.missing(leaf, exact=True) == [(trunk, 1), (leaf, 0)]
    tree.residency.store(trunk, [tree.residency.pool.allocate(1)[0], trunk.kv.slots[1]], first=1)
    assert tree.residency.missing(leaf, exact=True) == [(leaf, 0)]


def test_a_token_stored_again_is_not_new():
    tree = make_tree(4)
    segment = tree.walk(tree.origin, [1, 2])
    tree.hold(segment)
    assert store(tree, segment, 2) == 2
    tree.residency.make_room(4)
    assert store(tree, segment, 2) == 0


# -- what goes -----------------------------------------------------------------------------------------------------------


def test_eviction_is_leaf_first_and_spares_pinned_paths():
    tree = make_tree(4)
    trunk = hung(tree, tree.origin, [1, 2])
    old, new = (hung(tree, trunk, [token]) for token in (3, 4))
    tree.residency.pin(new)
    tree.residency.make_room(1)
    assert (trunk.resident, old.resident, new.resident) == (True, False, True)


def test_no_room_is_an_error_that_names_the_bytes_that_are_needed():
    tree = make_tree(4)
    tree.residency.pin(hung(tree, tree.origin, [1, 2, 3]))
    tree.residency.make_room(1)
    with pytest.raises(
        CacheError, match=r"2 more tokens do not fit the KV budget of 4 tokens, 3 of which running branches"
    ):
        tree.residency.make_room(2)
    with pytest.raises(CacheError, match=r"raise the KV budget, by 20 bytes at least"):
        tree.residency.make_room(3)


def test_segments_without_a_handle_go_before_segments_with_one():
    tree = make_tree(3)
    kept, dropped = hung(tree, tree.origin, [1]), hung(tree, tree.origin, [2])
    tree.drop(dropped)
    tree.residency.make_room(2)
    assert kept.resident


def test_a_compressor_is_called_once_and_before_any_held_segment_is_evicted():
    compressor = Halving()
    tree = make_tree(8, compressor=compressor)
    held = hung(tree, tree.origin, [1, 2, 3, 4])
    unheld = hung(tree, tree.origin, [5, 6])
    tree.drop(unheld)
    tree.residency.make_room(4)
    assert (compressor.asked, held.whole, unheld.resident) == ([], True, False)
    tree.residency.make_room(6)
    assert (compressor.asked, held.resident, len(held.kv.slots)) == ([6], True, 2)
    tree.residency.make_room(7)
    assert (compressor.asked, held.resident, len(held.kv.slots)) == ([6, 7], True, 1)
    tree.residency.make_room(8)
    assert (compressor.asked, held.resident) == ([6, 7, 8], False)


def test_kv_is_offloaded_before_it_goes_only_where_a_handle_refers_to_it():
    offloads = Offloads()
    tree = make_tree(9, offloader=offloads)
    trunk = hung(tree, tree.origin, [1, 2])
    held, unheld = hung(tree, trunk, [3]), hung(tree, trunk, [4])
    tree.drop(unheld)
    tree.residency.make_room(9)
    assert offloads.seen == [held, trunk]
    compute(tree, held)
    tree.residency.compress(trunk, [0])
    assert offloads.seen == [held, trunk, trunk]
    tree.residency.invalidate(trunk)
    assert offloads.seen == [held, trunk, trunk]
    assert not tree.residency.pool.used


def test_a_subtree_is_evicted_also_where_jobs_run():
    tree = make_tree()
    trunk = hung(tree, tree.origin, [1, 2])
    leaf, other = hung(tree, trunk, [3]), hung(tree, tree.origin, [4])
    tree.residency.pin(leaf)
    tree.residency.evict_subtree(trunk)
    assert tree.residency.missing(leaf) == [(trunk, 0), (leaf, 0)]
    assert other.resident
    tree.check_integrity()


def test_clearing_leaves_what_handles_and_running_jobs_need():
    tree = make_tree()
    held, pinned, unheld = (hung(tree, tree.origin, [token]) for token in (1, 2, 3))
    tree.residency.pin(pinned)
    for segment in (pinned, unheld):
        tree.drop(segment)
    tree.residency.clear()
    assert {segment for segment in tree.segments() if segment.kv.slots} == {held, pinned}


def test_kv_computed_below_compressed_kv_is_not_exact_and_restored_kv_is():
    tree = make_tree()
    segment = tree.walk(tree.origin, [1, 2, 3, 4])
    tree.hold(segment)
    store(tree, segment, 3)
    tree.residency.compress(segment, [0, 2])
    store(tree, segment, 1)
    assert (segment.kv.exact_tokens, segment.kv.present, segment.kv.exact) == (3, [0, 2, 3], False)
    new = tree.residency.pool.allocate(1)
    present = segment.kv.slots_of(range(4))
    tree.residency.restore(segment, [present.get(n, new[0]) for n in range(4)], None)
    assert segment.whole
    tree.check_integrity()


def test_a_visit_counts_once_however_often_a_job_moves_on():
    tree = make_tree()
    trunk = hung_at = tree.walk(tree.origin, [1])
    tree.residency.pin(trunk)
    for token in (2, 3, 4):
        below = tree.walk(hung_at, [token])
        tree.residency.pin(below)
        tree.residency.unpin(hung_at)
        hung_at = below
    assert (trunk.uses, hung_at.uses) == (1, 1)
    tree.hold(hung_at)
    tree.residency.unpin(hung_at)
    tree.residency.pin(hung_at)
    assert (trunk.uses, hung_at.uses) == (2, 2)


# -- undo ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
def test_undoing_a_pass_leaves_everything_as_it_was(compressed):
    tree = make_tree()
    segment = tree.walk(tree.origin, [1, 2, 3, 4, 5])
    tree.hold(segment)
    store(tree, segment, 3)
    if compressed:
        tree.residency.compress(segment, [0, 2])
    before, used = segment.kv.state(), tree.residency.pool.used
    store(tree, segment, 2)
    tree.residency.undo_store(segment, 2, before.ever_computed)
    assert (segment.kv.state(), tree.residency.pool.used) == (before, used)
    if compressed:
        tree.residency.store(segment, [*tree.residency.pool.allocate(1), segment.kv.slots[1]], first=1)
        tree.residency.undo_overwrite(segment, before)
        assert (segment.kv.state(), tree.residency.pool.used) == (before, used)
    tree.check_integrity()


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
                residency.make_room(count)
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
