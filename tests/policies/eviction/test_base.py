"""What each eviction policy orders by, and that they are found by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.core.errors import ConfigError
from rksc_tot.policies.eviction.base import LFU, LRU, EvictionCandidate, EvictionPolicy, NoEviction, RandomEviction
from rksc_tot.policies.eviction.registry import EVICTION, eviction_policy
from rksc_tot.policies.eviction.rsbcm import RSBCM

BUILT_IN = {"rsbcm": RSBCM, "lru": LRU, "lfu": LFU, "random": RandomEviction, "none": NoEviction}


def candidate(importance=0.0, last_used=1, uses=1, id=1):
    return EvictionCandidate(importance, last_used, uses, id)


def first(policy, *candidates):
    return min(candidates, key=policy.order)


def test_every_built_in_policy_is_found_by_its_name():
    assert {name: type(eviction_policy(name)) for name in BUILT_IN} == BUILT_IN
    assert all(policy.name == name for name, policy in BUILT_IN.items())
    assert set(EVICTION.names()) >= set(BUILT_IN)


@pytest.mark.parametrize("named", ["fifo", "", "LRU", None, 3, LRU])
def test_a_value_that_is_not_a_policy_is_refused(named):
    with pytest.raises(ConfigError) as raised:
        eviction_policy(named)
    assert repr(named) in str(raised.value)
    assert "rsbcm" in str(raised.value)


def test_a_policy_object_is_used_as_it_is():
    policy = RandomEviction(seed=7)
    assert eviction_policy(policy) is policy


@pytest.mark.parametrize("name", EVICTION.names())
@given(st.tuples(st.floats(allow_nan=False), st.integers(0), st.integers(0), st.integers(1)))
def test_an_order_depends_on_the_candidate_alone(name, fields):
    policy = EVICTION.make(name)
    assert policy.order(EvictionCandidate(*fields)) == EVICTION.make(name).order(EvictionCandidate(*fields))


def test_lru_takes_the_least_recently_used():
    old, new = candidate(importance=9, last_used=1, uses=9), candidate(importance=0, last_used=2, uses=1)
    assert first(LRU(), new, old) is old


def test_lfu_takes_the_least_often_used_and_of_those_the_oldest():
    rare, old, often = candidate(uses=1, last_used=5), candidate(uses=1, last_used=3), candidate(uses=2, last_used=1)
    assert first(LFU(), often, rare) is rare
    assert first(LFU(), often, rare, old) is old


def test_random_eviction_depends_on_the_seed_only():
    candidates = [candidate(importance=n, last_used=n, uses=n, id=n) for n in range(20)]

    def permutation(seed):
        return sorted(candidates, key=RandomEviction(seed=seed).order)

    assert permutation(1) == permutation(1)
    assert len({tuple(permutation(seed)) for seed in range(10)}) == 10
    assert len({first(RandomEviction(seed=seed), *candidates) for seed in range(60)}) > 10


def test_only_no_eviction_spares_held_kv():
    assert [name for name, policy in BUILT_IN.items() if not policy.evicts_held] == ["none"]


def test_the_base_cannot_be_made():
    with pytest.raises(TypeError):
        EvictionPolicy()
