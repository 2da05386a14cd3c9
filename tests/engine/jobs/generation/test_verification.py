"""Drafts are counted as accepted up to the first token that the branch does not draw, and as rejected from there on."""

from collections import deque

import pytest

from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.core.ledger import Verified
from rksc_tot.engine.jobs.generation.verification import END, Verification
from rksc_tot.policies.eviction.rsbcm import RSBCM

EOS = frozenset({90, 91})


def verify(*drafts):
    """A verification of drafts, one for each branch."""
    unverified = {branch: deque(draft) for branch, draft in enumerate(drafts)}
    return Verification(PrefixTree(SlotPool(9), RSBCM()), Verified(), start=0, unverified=unverified)


def counts(verification):
    return verification.ledger.accepted, verification.ledger.rejected


def test_the_first_different_token_rejects_the_rest_of_a_draft_even_where_the_rest_agrees():
    verification = verify([5, 6, 7, 8])
    for token in (5, 1, 7, 8):
        verification.compare([0], [token], EOS)
    assert counts(verification) == (1, 3)


def test_each_branch_is_compared_with_its_own_draft():
    verification = verify([5, 6, 7], [5, 8])
    verification.compare([0, 1], [5, 5], EOS)
    verification.compare([1, 0], [6, 6], EOS)
    verification.compare([0], [7], EOS)
    assert counts(verification) == (4, 1)


@pytest.mark.parametrize(("drawn", "expected"), [(90, (1, 0)), (91, (1, 0)), (5, (0, 1))])
def test_a_drafted_end_is_accepted_where_any_end_token_is_drawn(drawn, expected):
    verification = verify([END])
    verification.compare([0], [drawn], EOS)
    assert counts(verification) == expected


def test_a_token_drawn_after_the_draft_is_neither_accepted_nor_rejected():
    verification = verify([5])
    for token in (5, 6):
        verification.compare([0], [token], EOS)
    assert counts(verification) == (1, 0)


def test_the_branch_with_most_accepted_tokens_is_the_longest():
    verification = verify([5, 6, 7], [5, 6, 7])
    assert verification.longest == 0
    for first, second in ((5, 5), (6, 1), (7, 1)):
        verification.compare([0, 1], [first, second], EOS)
    assert verification.longest == 3


def test_tokens_not_compared_when_a_verification_ends_are_rejected():
    verification = verify([5, 6, 7], [5])
    verification.compare([0], [5], EOS)
    verification.close()
    assert counts(verification) == (1, 3)
