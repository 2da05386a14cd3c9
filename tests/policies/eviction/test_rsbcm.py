"""ω = score / (depth + 1): deep and low goes first."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.core.errors import ConfigError
from rksc_tot.policies.eviction.base import EvictionCandidate
from rksc_tot.policies.eviction.rsbcm import RSBCM

SCORES = st.floats(-1e6, 1e6)
DEPTHS = st.integers(0, 50)
SHARES = st.floats(0, 1)


@pytest.mark.parametrize(
    ("score", "depth", "omega"), [(1, 0, 1), (1, 1, 0.5), (20, 3, 5), (0, 9, 0), (-2, 0, -2), (-2, 3, -8)]
)
def test_the_formula(score, depth, omega):
    assert RSBCM().importance(score, depth) == omega


@given(SCORES, DEPTHS, DEPTHS)
def test_of_equal_scores_the_deeper_is_never_more_important(score, one, other):
    shallow, deep = sorted((one, other))
    assert RSBCM().importance(score, deep) <= RSBCM().importance(score, shallow)


@given(SCORES, SCORES, DEPTHS)
def test_at_equal_depth_the_higher_score_is_never_less_important(one, other, depth):
    low, high = sorted((one, other))
    assert RSBCM().importance(low, depth) <= RSBCM().importance(high, depth)


@given(SCORES, DEPTHS, SHARES)
def test_attention_is_not_measured_unless_it_is_weighted(score, depth, attention):
    assert RSBCM().importance(score, depth, attention) == RSBCM().importance(score, depth)


@given(SCORES, DEPTHS, SHARES, SHARES, st.floats(0.01, 10))
def test_with_a_weight_more_attention_is_never_less_important(score, depth, one, other, weight):
    policy = RSBCM(attention_weight=weight)
    less, more = sorted((one, other))
    assert policy.importance(score, depth, less) <= policy.importance(score, depth, more)
    assert policy.importance(score, depth) == RSBCM().importance(score, depth)


def test_the_weighted_formula():
    policy = RSBCM(attention_weight=2)
    assert policy.importance(6, 1, attention=0.5) == 6 / 2 * 2
    assert policy.importance(-6, 1, attention=0.5) == -6 * 2 / 2


@given(st.floats(0, 1e6), DEPTHS, st.floats(-1e6, -1e-3), DEPTHS)
def test_a_negative_score_is_below_every_other_score(good, shallow, bad, deep):
    assert RSBCM().importance(bad, deep) < RSBCM().importance(good, shallow)


def test_the_least_important_goes_first_and_of_equals_the_least_recently_used():
    low, old, new = EvictionCandidate(0.1, 9, 9, 3), EvictionCandidate(0.2, 1, 9, 2), EvictionCandidate(0.2, 2, 1, 1)
    unrated = EvictionCandidate(math.inf, 0, 0, 0)
    assert sorted([unrated, new, old, low], key=RSBCM().order) == [low, old, new, unrated]


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf])
def test_a_weight_out_of_range_is_refused(weight):
    with pytest.raises(ConfigError, match="attention_weight"):
        RSBCM(attention_weight=weight)
