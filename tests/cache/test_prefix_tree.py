"""The prefix tree under any order of operations."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.policies.eviction.registry import EVICTION
from rksc_tot.policies.eviction.rsbcm import RSBCM
from tests.cache.reference import Reference, compute

POLICIES = EVICTION.names()
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=6)


class Cache(RuleBasedStateMachine):
    """Random operations on the cache and on a reference of plain lists."""

    def __init__(self, policy):
        super().__init__()
        self.books = Reference(policy, limit=8)

    @rule(tokens=TOKENS)
    def open(self, tokens):
        self.books.open(tokens)
        self.books.visit(self.books.held[-1])

    @rule(tokens=TOKENS, keep=st.booleans())
    def private_root(self, tokens, keep):
        self.books.private_root(tokens, keep)

    @precondition(lambda self: self.books.held)
    @rule(tokens=TOKENS, data=st.data())
    def extend(self, tokens, data):
        self.books.extend(data.draw(st.sampled_from(self.books.held)), tokens)
        self.books.visit(self.books.held[-1])

    @precondition(lambda self: self.books.held)
    @rule(length=st.integers(1, 6), data=st.data())
    def fork(self, length, data):
        self.books.fork(data.draw(st.sampled_from(self.books.held)), length)

    @precondition(lambda self: self.books.held)
    @rule(token=st.integers(0, 3), data=st.data())
    def step(self, token, data):
        self.books.step(data.draw(st.sampled_from(self.books.held)), token)

    @precondition(lambda self: self.books.held)
    @rule(data=st.data())
    def drop(self, data):
        self.books.drop(data.draw(st.sampled_from(self.books.held)))

    @precondition(lambda self: self.books.held)
    @rule(score=st.floats(-2, 2), depth=st.integers(0, 4), data=st.data())
    def rate(self, score, depth, data):
        self.books.rate(data.draw(st.sampled_from(self.books.held)), score, depth)

    @precondition(lambda self: self.books.held)
    @rule(data=st.data())
    def visit(self, data):
        self.books.visit(data.draw(st.sampled_from(self.books.held)))

    @precondition(lambda self: self.books.held)
    @rule(data=st.data())
    def pin(self, data):
        self.books.pin(data.draw(st.sampled_from(self.books.held)))

    @precondition(lambda self: self.books.pinned)
    @rule(data=st.data())
    def unpin(self, data):
        self.books.unpin(data.draw(st.sampled_from(self.books.pinned)))

    @precondition(lambda self: len(self.books.held) > 3)
    @rule()
    def clear(self):
        self.books.clear()

    @invariant()
    def the_books_agree(self):
        self.books.check()


@pytest.mark.parametrize("policy", POLICIES)
def test_any_order_of_operations_keeps_integrity_and_evicts_what_a_full_search_would(policy):
    run_state_machine_as_test(
        lambda: Cache(policy),
        settings=settings(
            max_examples=settings.default.max_examples // 2, stateful_step_count=50, deadline=None, derandomize=True
        ),
    )


def test_equal_paths_are_one_path():
    tree = PrefixTree(SlotPool(10), RSBCM())
    a = tree.walk(tree.origin, [1, 2, 3])
    tree.hold(a)
    assert tree.walk(tree.walk(tree.origin, [1]), [2, 3]) is a


def test_splitting_keeps_the_identity_of_the_end():
    tree = PrefixTree(SlotPool(10), RSBCM())
    low = tree.walk(tree.origin, [1, 2, 3, 4])
    tree.hold(low)
    compute(tree, low)
    high = tree.walk(tree.origin, [1, 2])
    assert low.parent is high
    assert (high.kv.slots, low.kv.slots) == ([0, 1], [2, 3])
    assert (high.last_used, high.uses) == (low.last_used, low.uses) == (1, 1)


def test_a_segment_that_another_branch_ends_on_does_not_grow():
    tree = PrefixTree(SlotPool(10), RSBCM())
    at = tree.walk(tree.origin, [1])
    tree.residency.pin(at)
    assert tree.step(at, 2, alone=True) is at
    assert tree.step(at, 3, alone=False) is not at
