"""The tree counts the resident tokens of each account exactly, and keeps them within its limit."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.core.errors import AccountFull, CacheError
from rksc_tot.policies.eviction.registry import EVICTION
from rksc_tot.policies.eviction.rsbcm import RSBCM

ROOM = 12
LIMITS = (5, 8)


@dataclass(eq=False)
class Purse:
    limit: int
    kv_rows: int = 0


def make_tree(room=ROOM):
    return PrefixTree(SlotPool(room), RSBCM())


def path(segment):
    return tuple(token for s in segment.lineage() for token in s.tokens)


def resident(tree):
    """The payer of every resident token, by the path that ends with the token."""
    found = {}
    for segment in tree.segments():
        whole = path(segment)
        for n in range(len(segment.kv.slots)):
            found[whole[: segment.start + n + 1]] = segment.kv.payer
    return found


def compute(tree, at, purse, most=99):
    """Make up to ``most`` more tokens of a path resident on an account, as a pass does."""
    tree.residency.pin(at)
    try:
        for segment, _ in tree.residency.missing(at)[:1]:
            tree.split_by_payer(segment, purse)
        for segment, first in tree.residency.missing(at):
            count = min(most, len(segment.tokens) - first)
            if not count:
                break
            slots = tree.room.allocate(count, purse, None if purse is None else purse.limit)
            tree.residency.store(segment, slots, purse)
            most -= count
    finally:
        tree.residency.unpin(at)


class Charged(RuleBasedStateMachine):
    """Paths are computed, in part or whole, on two accounts with a limit and on none."""

    def __init__(self):
        super().__init__()
        self.tree = make_tree()
        self.purses = [*map(Purse, LIMITS), None]
        self.held = []

    def handle(self, data):
        return data.draw(st.sampled_from(self.held))

    @rule(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def open(self, tokens):
        self.held.append(self.tree.walk(self.tree.origin, tokens))
        self.tree.hold(self.held[-1])

    @precondition(lambda self: self.held)
    @rule(data=st.data(), who=st.sampled_from([0, 1, 2]), most=st.integers(1, 6))
    def compute(self, data, who, most):
        purse = self.purses[who]
        before = resident(self.tree)
        evicted = self.tree.eviction_log.tokens
        at = self.handle(data)
        crowded = self.tree.residency.pool.available < 6
        try:
            compute(self.tree, at, purse, most)
        except CacheError:
            return
        gone = before.keys() - resident(self.tree).keys()
        assert len(gone) == self.tree.eviction_log.tokens - evicted
        if not crowded:  # nothing went but within the account's own limit
            assert all(before[token] is purse is not None for token in gone)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), who=st.sampled_from([0, 1, 2]), most=st.integers(1, 6))
    def compute_in_vain(self, data, who, most):
        """A failed pass is undone."""
        at, purse = self.handle(data), self.purses[who]
        for segment, _ in self.tree.residency.missing(at)[:1]:
            self.tree.split_by_payer(segment, purse)
        for segment, first in self.tree.residency.missing(at)[:1]:
            once, before = segment.kv.ever_computed, resident(self.tree)
            count = min(most, len(segment.tokens) - first, self.tree.residency.pool.available)
            self.tree.residency.store(segment, self.tree.residency.pool.allocate(count), purse)
            self.tree.residency.undo_store(segment, count, once)
            assert resident(self.tree) == before

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drop(self, data):
        at = self.handle(data)
        self.held.remove(at)
        self.tree.drop(at)

    @precondition(lambda self: len(self.held) > 4)
    @rule()
    def clear(self):
        self.tree.evictor.clear()

    @invariant()
    def each_account_is_charged_for_what_it_holds_and_holds_no_more_than_it_may(self):
        self.tree.check_integrity()
        payers = list(resident(self.tree).values())
        for purse in self.purses[:2]:
            assert sum(payer is purse for payer in payers) == purse.kv_rows <= purse.limit


def test_in_any_order_of_operations_accounts_are_charged_for_their_tokens():
    run_state_machine_as_test(
        Charged,
        settings=settings(
            max_examples=settings.default.max_examples, stateful_step_count=40, deadline=None, derandomize=True
        ),
    )


def test_a_path_that_two_accounts_computed_is_split_between_them():
    tree, one, two = make_tree(), Purse(5), Purse(5)
    at = tree.walk(tree.origin, [1, 2, 3, 4, 5])
    tree.hold(at)
    compute(tree, at, one, most=2)
    compute(tree, at, two)
    assert [(s.tokens, s.kv.payer) for s in at.lineage()] == [([1, 2], one), ([3, 4, 5], two)]
    assert (one.kv_rows, two.kv_rows) == (2, 3)


def test_resident_tokens_are_not_charged_to_a_second_account():
    tree, one, two = make_tree(), Purse(5), Purse(1)
    trunk = tree.walk(tree.origin, [1, 2, 3])
    leaf = tree.walk(trunk, [4])
    for at in (trunk, leaf):
        tree.hold(at)
    compute(tree, trunk, one)
    compute(tree, leaf, two)
    assert (one.kv_rows, two.kv_rows) == (3, 1)


def test_an_account_evicts_only_its_own_tokens_and_no_more_than_needed():
    tree, one, two = make_tree(), Purse(4), Purse(4)
    paths = {name: tree.walk(tree.origin, [name, name]) for name in range(5)}
    for name, purse in ((0, two), (1, one), (2, one), (3, two), (4, one)):
        tree.hold(paths[name])
        compute(tree, paths[name], purse)
    assert [paths[name].resident for name in range(5)] == [True, False, True, True, True]
    assert (one.kv_rows, two.kv_rows, tree.eviction_log.tokens) == (4, 4, 2)


def test_an_account_with_all_kv_in_use_is_full_and_the_error_has_the_numbers():
    tree, one = make_tree(), Purse(4)
    at = tree.walk(tree.origin, [1, 2, 3])
    tree.hold(at)
    compute(tree, at, one)
    tree.residency.pin(at)
    tree.room.make_room(1, one, one.limit)
    with pytest.raises(AccountFull, match="2 more tokens do not fit the 4 this search may hold, 3 of which are in use"):
        tree.room.make_room(2, one, one.limit)
    assert at.resident


def test_errors_about_one_token_use_the_singular():
    tree, one = make_tree(), Purse(3)
    at = tree.walk(tree.origin, [1, 2, 3])
    tree.hold(at)
    compute(tree, at, one)
    tree.residency.pin(at)
    with pytest.raises(AccountFull, match=r"^1 more token does not fit the 3 this search may hold"):
        tree.room.make_room(1, one, one.limit)
    full = PrefixTree(SlotPool(3), EVICTION.make("none"))
    at = full.walk(full.origin, [1, 2, 3])
    full.hold(at)
    compute(full, at, Purse(9))
    full.residency.pin(at)
    with pytest.raises(CacheError, match=r"^1 more token does not fit the KV budget of 3 tokens"):
        full.room.make_room(1)


@pytest.mark.parametrize("wrong", [-1, 1])
def test_integrity_notices_a_wrong_charge(wrong):
    tree, one = make_tree(), Purse(4)
    at = tree.walk(tree.origin, [1, 2, 3])
    tree.hold(at)
    compute(tree, at, one)
    one.kv_rows += wrong
    with pytest.raises(CacheError, match="charged"):
        tree.check_integrity()
    one.kv_rows -= wrong
    tree.room.make_room(ROOM)
    one.kv_rows += wrong
    with pytest.raises(CacheError, match="charged"):
        tree.check_integrity()
