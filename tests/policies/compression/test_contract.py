"""The contract of every registered compression policy, third-party ones included."""

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.core.errors import ConfigError
from rksc_tot.policies.compression.base import CompressionPolicy, PathPolicy, ThoughtBlock, TreePolicy, View
from rksc_tot.policies.compression.registry import COMPRESSION_POLICIES, compression_policy
from rksc_tot.policies.compression.selection import chosen, selection_rng

LAYERS, HEADS = 2, 3


class EveryOther(PathPolicy):
    """A third-party policy: keeps evenly spaced tokens."""

    name: ClassVar[str] = "every_other"

    def select(self, view, budget, rng):
        first = min(self.pinned(view), budget)
        spread = np.linspace(first, len(view), min(budget, len(view)) - first, endpoint=False).astype(int)
        return np.concatenate([np.arange(first), spread])


VARIANTS = [
    *((name, {}) for name in COMPRESSION_POLICIES.names()),
    (f"{__name__}:EveryOther", {}),
    ("random_attention", {"sets": "one"}),
    ("random_attention", {"granularity": 5}),
    ("random_attention", {"pin_prompt": False, "seed": 3}),
    ("snapkv", {"sets": "one", "kernel": 1}),
    ("snapkv", {"kernel": 9}),
    ("streaming", {"pin_prompt": False}),
    ("streaming", {"sinks": 0}),
    ("arborkv", {"within": "random", "theta": (1, 0, 0), "tail": 0, "sinks": 0}),
]
every = pytest.mark.parametrize(("name", "settings"), VARIANTS)


@st.composite
def views(draw):
    """Of 0 to 40 tokens, some gone from between them, in all heads the same or not."""
    n = draw(st.integers(0, 40))
    noise = np.random.default_rng(draw(st.integers(0, 2**32)))
    prompt = draw(st.integers(0, n))
    shape = (LAYERS, HEADS, n) if draw(st.booleans()) else (n,)
    gaps = np.where(np.arange(n) < prompt, 1, noise.integers(1, 4, shape))
    attention = noise.choice([0.0, 0.25, 0.5], (LAYERS, HEADS, n)) if draw(st.booleans()) else noise.random((2, 3, n))
    return View(np.cumsum(gaps, axis=-1) - 1, prompt, LAYERS, HEADS, attention)


def pinned(policy, view):
    return policy.pinned(view) if isinstance(policy, PathPolicy) else view.prompt


@every
def test_a_policy_has_a_name_and_a_summary(name, settings):
    assert COMPRESSION_POLICIES.summary(name)
    policy = COMPRESSION_POLICIES.make(name, **settings)
    assert policy.name in {name, "every_other"}
    assert compression_policy(policy) is policy
    assert type(policy)(**policy.model_dump()) == policy


@every
def test_a_policy_is_a_path_policy_or_a_tree_policy(name, settings):
    policy = COMPRESSION_POLICIES.make(name, **settings)
    assert policy.scope == ("path" if isinstance(policy, PathPolicy) else "tree")
    assert isinstance(policy, PathPolicy) is not isinstance(policy, TreePolicy)


@every
@given(views(), st.integers(0, 45))
def test_a_selection_has_budget_tokens_in_order_without_repeats(name, settings, view, budget):
    policy = COMPRESSION_POLICIES.make(name, **settings)
    kept = chosen(policy, view, budget, selection_rng(0))
    assert kept.shape == (*((LAYERS, HEADS) if policy.per_head else ()), min(budget, len(view)))
    assert (np.diff(kept, axis=-1) > 0).all()
    assert np.isin(kept, np.arange(len(view))).all()


@every
@given(views(), st.integers(0, 5))
def test_all_tokens_stay_if_the_budget_suffices(name, settings, view, spare):
    policy = COMPRESSION_POLICIES.make(name, **settings)
    kept = chosen(policy, view, len(view) + spare, selection_rng(0))
    assert (kept == np.arange(len(view))).all()


@every
@given(views(), st.integers(0, 45))
def test_a_pinned_prompt_stays_up_to_the_budget(name, settings, view, budget):
    policy = COMPRESSION_POLICIES.make(name, **settings)
    kept = chosen(policy, view, budget, selection_rng(0))
    least = min(pinned(policy, view), budget)
    assert (kept[..., :least] == np.arange(least)).all()


@every
@given(views(), st.integers(0, 45), st.integers(0, 2**32))
def test_a_selection_depends_on_view_budget_and_generator_only(name, settings, view, budget, seed):
    before = [array.copy() for array in (view.positions, view.attention)]
    one, two = (
        chosen(COMPRESSION_POLICIES.make(name, **settings), view, budget, selection_rng(seed)) for _ in range(2)
    )
    assert np.array_equal(one, two)
    assert all(map(np.array_equal, before, (view.positions, view.attention)))


@every
def test_only_policies_that_heed_attention_use_it(name, settings):
    policy = COMPRESSION_POLICIES.make(name, **settings)
    shares = np.random.default_rng(0).random((2, LAYERS, HEADS, 30))
    one, other = (chosen(policy, View(np.arange(30), 4, LAYERS, HEADS, a), 15, selection_rng(0)) for a in shares)
    assert np.array_equal(one, other) is not policy.heeds_attention


@every
def test_per_head_selections_differ_between_heads(name, settings):
    policy = COMPRESSION_POLICIES.make(name, **settings)
    shares = np.random.default_rng(0).random((LAYERS, HEADS, 60))
    kept = chosen(policy, View(np.arange(60), 4, LAYERS, HEADS, shares), 30, selection_rng(0))
    sets = {tuple(row) for row in kept.reshape(-1, 30)}
    assert len(sets) == (LAYERS * HEADS if policy.per_head else 1)


TREE = [name for name in COMPRESSION_POLICIES.names() if issubclass(type(COMPRESSION_POLICIES.make(name)), TreePolicy)]
PATH = [name for name in [*COMPRESSION_POLICIES.names(), f"{__name__}:EveryOther"] if name not in TREE]


@pytest.mark.parametrize("name", PATH)
def test_a_prompt_that_fills_the_budget_is_refused_with_the_needed_budget(name):
    COMPRESSION_POLICIES.make(name, budget=101).check_prompt(100)
    COMPRESSION_POLICIES.make(name, budget=1, pin_prompt=False).check_prompt(100)
    for budget in (1, 99, 100):
        with pytest.raises(ConfigError, match=f"a budget of {budget} tokens, .* has 100 - set budget to 101 at least"):
            COMPRESSION_POLICIES.make(name, budget=budget).check_prompt(100)


@pytest.mark.parametrize("name", PATH)
@pytest.mark.parametrize("setting", ["budget", "recent"])
def test_a_path_keeps_at_least_a_token_of_each_kind(name, setting):
    with pytest.raises(ConfigError, match=f"{setting}: .* greater than or equal to 1, not 0"):
        COMPRESSION_POLICIES.make(name, **{setting: 0})


@pytest.mark.parametrize("name", TREE)
@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=8), st.integers(0, 300))
def test_a_tree_policy_allots_no_block_more_than_it_has_nor_a_protected_one_less(name, blocks, budget):
    blocks = [ThoughtBlock(tokens, 0.5, 1.0, 0.1, 2, protected, 50) for tokens, protected in blocks]
    shares = COMPRESSION_POLICIES.make(name).allot(blocks, budget)
    assert all(0 <= share <= block.tokens for share, block in zip(shares, blocks, strict=True))
    assert all(share == block.tokens for share, block in zip(shares, blocks, strict=True) if block.protected)
    assert sum(shares) <= max(budget, sum(COMPRESSION_POLICIES.make(name).allot(blocks, 0)))


def test_the_base_classes_cannot_be_instantiated():
    for base in (CompressionPolicy, PathPolicy, TreePolicy):
        with pytest.raises(TypeError):
            base()
