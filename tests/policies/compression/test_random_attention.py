"""Survival rates of Random Attention. Bounds are binomial, wide enough for all counts of a test together."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.core.errors import ConfigError
from rksc_tot.policies.compression.base import View
from rksc_tot.policies.compression.random_attention import RandomAttention
from rksc_tot.policies.compression.selection import chosen, selection_rng

SIGMAS = 5.0  # of some hundred counts one is that far off once in ten thousand tests


def view(n, prompt=0, layers=1, heads=1, positions=None):
    return View(np.arange(n) if positions is None else positions, prompt, layers, heads)


def within(count, draws, p):
    return abs(count - draws * p) <= SIGMAS * math.sqrt(draws * p * (1 - p))


def counts(policy, seen, budget, draws):
    """How often each token stayed, ``[..., n]``."""
    total = np.zeros((seen.layers, seen.heads, len(seen)) if policy.per_head else len(seen), dtype=int)
    for draw in range(draws):
        kept = chosen(policy, seen, budget, selection_rng(0, draw))
        np.put_along_axis(total, kept, np.take_along_axis(total, kept, -1) + 1, -1)
    return total


@pytest.mark.parametrize("sets", ["head", "one"])
def test_every_token_after_the_prompt_stays_equally_often_in_every_head(sets):
    stayed = counts(RandomAttention(sets=sets), view(40, prompt=8, layers=2, heads=2), 20, draws=1500)
    assert (stayed[..., :8] == 1500).all()
    assert all(within(count, 1500, 12 / 32) for count in stayed[..., 8:].ravel())


def test_an_unpinned_prompt_is_sampled_like_other_tokens():
    stayed = counts(RandomAttention(pin_prompt=False), view(30, prompt=10), 10, draws=1500)
    assert all(within(count, 1500, 1 / 3) for count in stayed.ravel())


def test_heads_layers_and_selections_are_independent():
    """Two sets of 15 of 30 have 7.5 in common on average; equal ones would have 15, and complements none."""
    policy, seen, draws = RandomAttention(), view(30, layers=2, heads=2), 400
    kept = [chosen(policy, seen, 15, selection_rng(0, draw)).reshape(4, 15) for draw in range(draws)]
    pairs = [(a, b) for a in range(4) for b in range(a)]
    for a, b in pairs:
        common = sum(len(np.intersect1d(sets[a], sets[b])) for sets in kept)
        assert within(common, draws * 15, 0.5)  # the variance of draws without replacement is smaller still
    later = sum(len(np.intersect1d(one[0], two[0])) for one, two in pairwise(kept))
    assert within(later, (draws - 1) * 15, 0.5)


def test_one_set_for_all_heads_is_a_uniform_sample():
    seen = view(30, prompt=3, layers=2, heads=2)
    assert chosen(RandomAttention(sets="one"), seen, 15, selection_rng(0)).shape == (15,)
    assert chosen(RandomAttention(), seen, 15, selection_rng(0)).shape == (2, 2, 15)


@pytest.mark.parametrize("settings", [{}, {"sets": "one"}, {"granularity": 3}])
def test_another_seed_gives_another_sample(settings):
    sets = {
        chosen(RandomAttention(**settings), view(60, 5), 30, selection_rng(seed, "path", 0)).tobytes()
        for seed in range(20)
    }
    assert len(sets) == 20


def test_survival_follows_the_papers_formula():
    """((K - p) / (K + r - p))^m for a token after m selections, r new ones having come before each."""
    prompt, budget, recent, rounds, paths = 10, 40, 10, 6, 600
    policy, alive = RandomAttention(sets="one"), np.zeros(rounds, dtype=int)
    marked = range(prompt, budget + recent)
    for path in range(paths):
        tokens = np.arange(budget + recent)
        for times in range(rounds):
            kept = chosen(policy, view(len(tokens), prompt, positions=tokens), budget, selection_rng(path, times))
            tokens = tokens[kept]
            alive[times] += np.isin(tokens, marked).sum()
            tokens = np.append(tokens, tokens.max() + 100 + np.arange(recent))
    share = (budget - prompt) / (budget + recent - prompt)
    assert all(within(count, paths * len(marked), share**times) for times, count in enumerate(alive, start=1))


# -- runs --------------------------------------------------------------------------------------------------------------


def cut(kept, seen, policy):
    """Runs of a set of which something stayed and something went."""
    run = seen.positions // policy.granularity
    free = np.arange(len(seen)) >= policy.pinned(seen)
    stays = np.isin(np.arange(len(seen)), kept)
    return [r for r in np.unique(run[free]) if len(set(stays[free & (run == r)].tolist())) == 2]


@given(
    st.integers(1, 60), st.integers(0, 60), st.integers(1, 20), st.integers(0, 20), st.integers(0, 99), st.booleans()
)
def test_runs_stay_or_go_together_except_one_partial_run(n, budget, granularity, prompt, seed, gaps):
    positions = np.cumsum(np.random.default_rng(seed).integers(1, 4, n)) if gaps else np.arange(n)
    policy, seen = RandomAttention(granularity=granularity), view(n, min(prompt, n), positions=positions)
    (kept,) = chosen(policy, seen, budget, selection_rng(seed))[0]
    broken = cut(kept, seen, policy)
    assert len(broken) <= 1
    for run in broken:
        members = np.flatnonzero((positions // granularity == run) & (np.arange(n) >= policy.pinned(seen)))
        stays = np.isin(members, kept)
        assert stays.tolist() == sorted(stays.tolist())


def test_every_run_stays_equally_often():
    stayed = counts(RandomAttention(granularity=4), view(40), 20, draws=1500)[0, 0].reshape(10, 4)
    assert (stayed == stayed[:, :1]).all()
    assert all(within(count, 1500, 0.5) for count in stayed[:, 0])


def test_heads_that_hold_different_tokens_have_runs_of_their_own():
    positions = np.stack([np.arange(12), np.arange(12) * 4])[None]  # [1, 2, 12]: three runs of 4 against twelve of one
    seen = View(positions, 0, 1, 2)
    policy = RandomAttention(granularity=4)
    for seed in range(50):
        kept = chosen(policy, seen, 4, selection_rng(seed))[0]
        assert len(set((kept[0] // 4).tolist())) == 1
    scattered = {len(set((chosen(policy, seen, 4, selection_rng(seed))[0][1] // 4).tolist())) for seed in range(50)}
    assert max(scattered) == 3


@pytest.mark.parametrize("settings", [{"granularity": 0}, {"sets": "layer"}, {"seed": -1}])
def test_an_invalid_setting_is_refused_with_its_value(settings):
    ((name, value),) = settings.items()
    with pytest.raises(ConfigError, match=f"compression policy 'random_attention': {name}: .*{value}"):
        RandomAttention(**settings)
