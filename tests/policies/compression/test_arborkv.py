"""The value of blocks, the division of a budget, and the selection within a block."""

import heapq
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.core.errors import ConfigError
from rksc_tot.policies.compression.arborkv import ArborKV, shared_out
from rksc_tot.policies.compression.base import ThoughtBlock, View
from rksc_tot.policies.compression.selection import chosen, selection_rng

PLAIN = ThoughtBlock(tokens=100, value=0.0, entropy=0.0, attention=0.0, distance=0, protected=False, start=50)
ANY = st.floats(allow_nan=True, allow_infinity=True)
BLOCKS = st.lists(
    st.builds(
        ThoughtBlock,
        tokens=st.integers(0, 60),
        value=st.one_of(st.floats(-3, 3), ANY),
        entropy=st.one_of(st.floats(0, 10), st.just(math.nan)),
        attention=st.one_of(st.floats(0, 1), st.just(math.nan)),
        distance=st.integers(0, 1000),
        protected=st.booleans(),
        start=st.integers(0, 10),
    ),
    max_size=12,
)
POLICIES = st.builds(
    ArborKV,
    theta=st.tuples(*[st.floats(-5, 5)] * 3),
    offset=st.floats(-5, 5),
    decay=st.one_of(st.floats(0, 2), st.just(1e4)),
    sinks=st.integers(0, 6),
    tail=st.integers(0, 12),
)


def block(**changes):
    return PLAIN._replace(**changes)


# -- value and weight --------------------------------------------------------------------------------------------------


def test_value_and_weight_are_the_papers():
    policy = ArborKV(theta=(0.5, -2, 3), offset=0.25, decay=0.7)
    there = block(value=2, entropy=0.3, attention=0.1, distance=3)
    logit = 0.5 * 2 - 2 * 0.3 + 3 * 0.1 + 0.25
    assert policy.value(there) == pytest.approx(1 / (1 + math.exp(-logit)))
    assert policy.weight(there) == pytest.approx(math.exp(-0.7 * 3) / (1 + math.exp(-logit)))


def test_by_default_value_and_attention_count_and_entropy_does_not():
    policy = ArborKV()
    assert policy.value(block(value=1)) > policy.value(PLAIN) > policy.value(block(value=-1))
    assert policy.value(block(attention=1)) > policy.value(PLAIN) == policy.value(block(entropy=9))


@given(POLICIES, ANY, st.integers(0, 10**6))
def test_value_and_weight_lie_within_0_and_1(policy, value, distance):
    there = block(value=value, distance=distance)
    assert 0 <= policy.weight(there) <= policy.value(there) <= 1


@pytest.mark.parametrize("feature", ["value", "entropy", "attention"])
def test_unknown_features_count_as_0(feature):
    policy = ArborKV(theta=(1, 1, 1))
    assert policy.value(block(**{feature: math.nan})) == policy.value(PLAIN)


def test_a_feature_with_theta_0_has_no_effect():
    policy = ArborKV(theta=(0, 1, 1))
    assert policy.value(block(value=math.inf)) == policy.value(block(value=-math.inf)) == policy.value(PLAIN)


# -- allotment ---------------------------------------------------------------------------------------------------------


@given(POLICIES, BLOCKS, st.integers(0, 900))
def test_the_sum_is_the_budget_or_the_protected_tokens(policy, blocks, budget):
    tails = [max(0, policy.sinks - b.start) + max(0, policy.tail - b.below) for b in blocks]
    floors = [b.tokens if b.protected else min(b.tokens, tail) for b, tail in zip(blocks, tails, strict=True)]
    shares = policy.allot(blocks, budget)
    assert all(floor <= share <= b.tokens for floor, share, b in zip(floors, shares, blocks, strict=True))
    assert sum(shares) == max(min(budget, sum(b.tokens for b in blocks)), sum(floors))
    assert all(type(share) is int for share in shares)


@given(POLICIES, BLOCKS, st.integers(0, 600))
def test_a_budget_smaller_by_one_takes_one_token_from_one_block(policy, blocks, budget):
    less, more = policy.allot(blocks, budget), policy.allot(blocks, budget + 1)
    assert all(0 <= b - a <= 1 for a, b in zip(less, more, strict=True))
    assert less == policy.allot(blocks, budget)


def test_a_share_is_in_proportion_to_the_weight_beyond_the_tail():
    near, far = block(distance=1), block(distance=3)
    policy = ArborKV(decay=math.log(2) / 2, tail=8)  # twice the weight for each two edges
    assert policy.allot([near, far], 8 + 8 + 60) == [8 + 40, 8 + 20]
    assert policy.allot([near, far], 8 + 8 + 120) == [8 + 80, 8 + 40]
    assert policy.allot([near, far], 8 + 8 + 150) == [100, 66]  # what the one cannot hold, the other gets


def test_a_block_without_value_gets_the_rest():
    policy = ArborKV(tail=0)
    assert policy.allot([block(value=-math.inf), block(value=math.inf)], 60) == [0, 60]
    assert policy.allot([block(value=-math.inf), block(value=math.inf)], 130) == [30, 100]
    assert policy.allot([block(distance=10**6), block(distance=10**5)], 100) == [0, 100]


def test_the_first_of_equal_blocks_gets_the_odd_token():
    assert ArborKV(tail=0).allot([PLAIN] * 3, 10) == [4, 3, 3]
    assert ArborKV(tail=0).allot([PLAIN] * 3, 11) == [4, 4, 3]


def test_sinks_belong_to_the_path_and_the_tail_to_the_block():
    policy = ArborKV(sinks=4, tail=2)
    starts = [block(start=start) for start in (0, 3, 4, 70)]
    assert policy.allot(starts, 0) == [6, 3, 2, 2]
    assert policy.allot([block(tokens=1, start=0), block(tokens=0)], 0) == [1, 0]
    assert policy.allot([block(protected=True), block()], 0) == [100, 2]


def test_no_blocks_give_an_empty_allotment():
    assert ArborKV().allot([], 10) == []


@given(
    st.lists(st.tuples(st.integers(0, 40), st.one_of(st.floats(-4, 4), st.floats(-1e6, 1e6))), min_size=1, max_size=8),
    st.data(),
)
def test_shares_equal_those_of_giving_tokens_one_by_one(takers, data):
    rooms, weights = map(list, zip(*takers, strict=True))
    amount = data.draw(st.integers(0, sum(rooms)))
    relative = [max(weight - max(weights), -1e4) for weight in weights]
    given = [0] * len(rooms)
    for _ in range(amount):
        free = [at for at, room in enumerate(rooms) if given[at] < room]
        given[min(free, key=lambda at: (math.log1p(given[at]) - relative[at], at))] += 1
    assert shared_out(amount, rooms, weights) == given


def test_the_work_grows_with_blocks_not_with_tokens(monkeypatch):
    steps, replace = [], heapq.heapreplace
    monkeypatch.setattr(heapq, "heapreplace", lambda queue, item: steps.append(replace(queue, item)))
    shares = shared_out(50 * 10**6, [10**6] * 100, np.linspace(-3, 0, 100).tolist())
    assert sum(shares) == 50 * 10**6
    assert 0 < len(steps) <= 200


# -- within a block ----------------------------------------------------------------------------------------------------


def kept(policy, budget, start=50, prompt=0, attention=None, seed=0, n=20):
    seen = View(np.arange(start, start + n), prompt, 2, 2, attention)
    return chosen(policy, seen, budget, selection_rng(seed)).tolist()


def looked_at(*at):
    attention = np.zeros((2, 2, 20))
    for rank, token in enumerate(at):
        attention[rank % 2, rank // 2 % 2, token] = 1 - 0.1 * rank
    return attention


@pytest.mark.parametrize(
    ("settings", "budget", "start", "stays"),
    [
        ({"tail": 3}, 5, 50, [5, 9, 17, 18, 19]),
        ({"tail": 3}, 7, 50, [2, 5, 9, 14, 17, 18, 19]),
        ({"tail": 3}, 2, 50, [18, 19]),  # less than the tail: its end
        ({"tail": 3}, 6, 0, [0, 1, 2, 3, 18, 19]),  # sinks before the tail
        ({"tail": 2}, 6, 2, [0, 1, 5, 9, 18, 19]),  # two of the four sinks are in here
        ({"tail": 0, "sinks": 0}, 2, 0, [5, 9]),
    ],
)
def test_sinks_tail_and_the_most_attended_tokens_stay(settings, budget, start, stays):
    assert kept(ArborKV(**settings), budget, start, attention=looked_at(9, 5, 14, 2)) == stays


def test_a_prompt_in_the_block_stays():
    assert kept(ArborKV(tail=1), 5, prompt=3, attention=looked_at(9)) == [0, 1, 2, 9, 19]


@pytest.mark.parametrize(("settings", "attention"), [({}, None), ({"within": "random"}, looked_at(9, 5))])
def test_without_attention_the_tokens_are_random(settings, attention):
    policy, seen = ArborKV(tail=2, **settings), np.zeros(20)
    for seed in range(1000):
        stays = kept(policy, 8, attention=attention, seed=seed)
        assert stays[-2:] == [18, 19]
        seen[stays] += 1
    assert all(abs(times - 1000 * 6 / 18) < 5 * math.sqrt(1000 * 1 / 3 * 2 / 3) for times in seen[:18])


@pytest.mark.parametrize(
    ("settings", "heeds"),
    [
        ({}, True),
        ({"within": "random"}, True),
        ({"theta": (1, 1, 0)}, True),
        ({"theta": (1, 1, 0), "within": "random"}, False),
    ],
)
def test_attention_is_measured_if_value_or_choice_needs_it(settings, heeds):
    assert ArborKV(**settings).heeds_attention is heeds


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"theta": (1, 2)}, "theta"),
        ({"theta": (1, math.nan, 2)}, "theta.1: .*nan"),
        ({"offset": math.inf}, "offset: .*inf"),
        ({"decay": -0.1}, "decay: .*greater than or equal to 0, not -0.1"),
        ({"decay": math.nan}, "decay: .*nan"),
        ({"sinks": -1}, "sinks: .*-1"),
        ({"tail": 1.5}, "tail: .*1.5"),
        ({"within": "snapkv"}, "within: .*snapkv"),
        ({"budget": 5}, "there is no setting 'budget'"),
    ],
)
def test_a_setting_out_of_range_is_refused_with_its_value(settings, message):
    with pytest.raises(ConfigError, match=f"compression policy 'arborkv': {message}"):
        ArborKV(**settings)
