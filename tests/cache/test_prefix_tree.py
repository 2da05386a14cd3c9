"""The books of the cache, under any order of operations."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rksc_tot.cache.pool import SlotPool
from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.errors import CacheError

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=6)


def path(segment):
    return [token for s in segment.lineage() for token in s.tokens]


def compute(tree, segment):
    """Make a path resident the way the engine does."""
    tree.pin(segment)
    try:
        for part, first in tree.missing(segment):
            count = len(part.tokens) - first
            tree.make_room(count)
            tree.store(part, tree.pool.allocate(count))
    finally:
        tree.unpin(segment)


class Cache(RuleBasedStateMachine):
    """Random walks, holds, drops, pins, computations and evictions against a model that is just lists."""

    def __init__(self):
        super().__init__()
        self.tree = PrefixTree(SlotPool(24))
        self.held = []  # (segment, path)
        self.pinned = []

    @rule(tokens=TOKENS, data=st.data())
    def hold(self, tokens, data):
        at = data.draw(st.sampled_from([(self.tree.origin, []), *self.held]))
        segment = self.tree.walk(at[0], tokens)
        self.tree.hold(segment)
        self.held.append((segment, at[1] + tokens))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drop(self, data):
        segment, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.tree.drop(segment)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def compute(self, data):
        segment, tokens = data.draw(st.sampled_from(self.held))
        try:
            compute(self.tree, segment)
        except CacheError:
            assert len(tokens) + sum(len(t) for _, t in self.pinned) > 24 or self.pinned
        else:
            assert segment.resident

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def pin(self, data):
        segment, tokens = data.draw(st.sampled_from(self.held))
        try:
            compute(self.tree, segment)
        except CacheError:
            return
        self.tree.pin(segment)
        self.pinned.append((segment, tokens))

    @precondition(lambda self: self.pinned)
    @rule()
    def unpin(self):
        self.tree.unpin(self.pinned.pop()[0])

    @precondition(lambda self: self.held)
    @rule(token=st.integers(0, 3), data=st.data())
    def step(self, token, data):
        segment, tokens = data.draw(st.sampled_from(self.held))
        following = self.tree.step(segment, token, alone=True)
        assert path(following) == [*tokens, token]
        self.tree.hold(following)
        self.held.append((following, [*tokens, token]))

    @rule()
    def clear(self):
        self.tree.clear()

    @invariant()
    def every_handle_stands_where_it_stood(self):
        for segment, tokens in [*self.held, *self.pinned]:
            assert path(segment) == tokens

    @invariant()
    def pinned_paths_are_resident(self):
        for segment, _ in self.pinned:
            assert all(s.resident for s in segment.lineage())

    @invariant()
    def books_balance_and_the_budget_holds(self):
        self.tree.check_integrity()
        assert self.tree.pool.used <= 24

    @invariant()
    def no_path_exists_twice(self):
        ends = [tuple(path(s)) for s in self.tree.segments()]
        assert len(ends) == len(set(ends))

    @invariant()
    def nothing_is_remembered_that_nobody_needs(self):
        for segment in self.tree.segments():
            needed = segment.handles or segment.pins or segment.children
            assert needed or segment.slots


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


def test_equal_paths_are_one_path():
    tree = PrefixTree(SlotPool(10))
    a = tree.walk(tree.origin, [1, 2, 3])
    tree.hold(a)
    assert tree.walk(tree.walk(tree.origin, [1]), [2, 3]) is a


def test_splitting_keeps_the_identity_of_the_end():
    tree = PrefixTree(SlotPool(10))
    low = tree.walk(tree.origin, [1, 2, 3, 4])
    tree.hold(low)
    compute(tree, low)
    high = tree.walk(tree.origin, [1, 2])
    assert low.parent is high
    assert (high.slots, low.slots) == ([0, 1], [2, 3])


def test_a_segment_somebody_else_stands_on_does_not_grow():
    tree = PrefixTree(SlotPool(10))
    at = tree.walk(tree.origin, [1])
    tree.pin(at)
    assert tree.step(at, 2, alone=True) is at
    assert tree.step(at, 3, alone=False) is not at


def test_eviction_is_leaf_first_and_spares_what_is_pinned():
    tree = PrefixTree(SlotPool(4))
    trunk = tree.walk(tree.origin, [1, 2])
    tree.hold(trunk)
    old, new = tree.walk(trunk, [3]), tree.walk(trunk, [4])
    for leaf in (old, new):
        tree.hold(leaf)
        compute(tree, leaf)
    tree.pin(new)
    tree.make_room(1)
    assert (trunk.resident, old.resident, new.resident) == (True, False, True)
    with pytest.raises(CacheError, match="do not fit the KV budget of 4 tokens"):
        tree.make_room(2)


def test_what_nobody_holds_goes_before_what_somebody_may_revisit():
    tree = PrefixTree(SlotPool(3))
    kept, dropped = tree.walk(tree.origin, [1]), tree.walk(tree.origin, [2])
    tree.hold(kept)
    tree.hold(dropped)
    compute(tree, kept)
    compute(tree, dropped)
    tree.drop(dropped)
    tree.make_room(2)
    assert kept.resident


def test_a_token_stored_again_is_not_new():
    tree = PrefixTree(SlotPool(4))
    segment = tree.walk(tree.origin, [1, 2])
    tree.hold(segment)
    assert tree.store(segment, tree.pool.allocate(2)) == 2
    tree.make_room(4)
    assert tree.store(segment, tree.pool.allocate(2)) == 0
