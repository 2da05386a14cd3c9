"""Sampling: the filters, the streams, and independence of the batch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.engine.base import Sampling
from rksc_tot.engine.jobs.random_streams import Streams
from rksc_tot.engine.jobs.sampler import BLOCK, Draws, Logits, filtered, sample

LOGITS = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.1]]))


def kept(**settings):
    return (filtered(LOGITS, Sampling(**settings))[0] > float("-inf")).tolist()


def draw(logits, uniforms, sampling=Sampling(), row=0):  # noqa: B008 - it is frozen
    [tokens], [logprobs] = sample(Logits(logits), [Draws([row] * len(uniforms), np.array(uniforms), sampling)])
    return tokens, logprobs


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"top_k": 2}, [True, True, False, False]),
        ({"top_k": 9}, [True] * 4),
        ({"top_p": 0.5}, [True, False, False, False]),
        ({"top_p": 0.51}, [True, True, False, False]),
        ({"min_p": 0.3}, [True, True, True, False]),
        ({"top_k": 3, "min_p": 0.4}, [True, True, False, False]),
    ],
)
def test_filters_keep_the_specified_tokens(settings, expected):
    assert kept(**settings) == expected


def test_temperature_0_takes_the_likeliest_token():
    tokens, logprobs = draw(LOGITS[:, [3, 0, 2, 1]], [0.0, 0.99], Sampling(temperature=0))
    assert tokens == [1, 1]
    assert logprobs == pytest.approx([np.log(0.5)] * 2)


def test_temperature_scales_log_odds():
    scaled = filtered(LOGITS, Sampling(temperature=0.5))[0]
    assert float(scaled[0] - scaled[1]) == pytest.approx(np.log(4.0), rel=1e-5)


@given(st.lists(st.integers(0, 2**128 - 1), min_size=1, max_size=5), st.integers(0, 100))
def test_streams_equal_those_of_numpy_generators_at_every_position(keys, position):
    streams = Streams(keys)
    for at in (position, 0, position // 2):
        wanted = [np.random.Generator(np.random.Philox(key=key)).random(at + 1)[at] for key in keys]
        assert streams[at].tolist() == wanted


def test_draws_do_not_depend_on_other_draws():
    torch.manual_seed(0)
    logits = torch.randn(5, 2 * BLOCK + 40)
    uniforms = np.array([0.1, 0.6, 0.99])
    draws = [
        Draws([row] * 3, uniforms, Sampling(temperature=t, top_k=k))
        for row in range(5)
        for t in (0, 0.7, 1.0)
        for k in (None, 9)
    ]
    tokens, logprobs = sample(Logits(logits), draws)
    for one, token, logprob in zip(draws, tokens, logprobs, strict=True):
        alone = logits[one.rows[0] : one.rows[0] + 1]
        assert draw(alone, uniforms, one.sampling) == (token, pytest.approx(logprob))


@given(
    st.integers(1, 3 * BLOCK),
    st.integers(0, 2**31),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=9),
)
def test_a_draw_inverts_the_cumulative_distribution_in_the_order_of_ids(vocabulary, seed, uniforms):
    logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(seed)) * 4
    cumulative = (logits - logits.max()).exp().double().cumsum(-1)[0].numpy()
    tokens, logprobs = draw(logits, uniforms)
    for uniform, token, logprob in zip(uniforms, tokens, logprobs, strict=True):
        wanted, slack = uniform * cumulative[-1], 1e-6 * cumulative[-1]
        assert (cumulative[token - 1] if token else 0.0) <= wanted + slack
        assert wanted <= cumulative[token] + slack
        assert logprob == pytest.approx(float(logits.double().log_softmax(-1)[0, token]), abs=1e-6)


def test_frequencies_follow_the_distribution():
    tokens, _ = draw(LOGITS, np.random.default_rng(0).random(20_000))
    share = np.bincount(tokens, minlength=4) / len(tokens)
    assert share == pytest.approx([0.5, 0.25, 0.15, 0.1], abs=0.012)


@pytest.mark.parametrize("vocabulary", [4, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_a_token_without_probability_is_never_drawn(vocabulary):
    logits = torch.full((1, vocabulary), float("-inf"))
    logits[0, vocabulary // 2] = 0.0
    for sampling in (Sampling(), Sampling(temperature=0.5), Sampling(top_k=1), Sampling(min_p=0.5)):
        tokens, _ = draw(logits, [0.0, 0.5, 1 - 1e-16, float(np.nextafter(1, 0))], sampling)
        assert set(tokens) == {vocabulary // 2}


def test_no_draw_falls_outside_the_filter():
    for u in (0.0, 0.5, 1 - 1e-16, float(np.nextafter(1, 0))):
        tokens, _ = draw(LOGITS, [u], Sampling(top_k=2))
        assert tokens[0] < 2


def test_log_probabilities_ignore_temperature_and_filters():
    _, (logprob,) = draw(LOGITS, [0.0], Sampling(temperature=0.1, top_k=1))
    assert logprob == pytest.approx(np.log(0.5), abs=1e-6)


def mask_of(*allowed, size=2 * BLOCK + 40):
    mask = np.zeros(size, np.bool_)
    mask[list(allowed)] = True
    return mask


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0), Sampling(temperature=0.5, top_k=2), Sampling(top_p=0.3), Sampling(min_p=0.5)],
)
def test_a_masked_draw_is_a_draw_from_the_allowed_tokens_alone(sampling):
    torch.manual_seed(0)
    logits = torch.randn(2, 2 * BLOCK + 40)
    allowed = [3, BLOCK + 1, 2 * BLOCK + 39]
    uniforms = np.linspace(0, 0.999, 40)
    masks = [mask_of(*allowed)] * len(uniforms)
    [tokens], [logprobs] = sample(Logits(logits), [Draws([1] * len(uniforms), uniforms, sampling, masks)])
    few, _ = draw(logits[1:, allowed], uniforms, sampling)
    assert tokens == [allowed[token] for token in few]
    assert logprobs == pytest.approx(logits[1].double().log_softmax(-1)[tokens].tolist())


def test_masked_draws_beside_others_change_no_draw():
    torch.manual_seed(0)
    table, uniforms = torch.randn(3, 2 * BLOCK + 40), np.array([0.1, 0.6, 0.99])
    plain = [Draws([row] * 3, uniforms, Sampling(temperature=t)) for row in range(3) for t in (0, 0.7, 1.0)]
    first, second = mask_of(5, 6, 7), mask_of(*range(100, 300))
    masked = [
        Draws([row] * 3, uniforms, Sampling(temperature=t), [first, second, first])
        for row in range(3)
        for t in (0, 0.7, 1.0)
    ]
    together = sample(Logits(table), [draws for pair in zip(masked, plain, strict=True) for draws in pair])
    assert [found[1::2] for found in together] == [*sample(Logits(table), plain)]
    for wanted, tokens, logprobs in zip(masked, together[0][::2], together[1][::2], strict=True):
        for at, (row, mask) in enumerate(zip(wanted.rows, wanted.masks, strict=True)):
            alone = Draws([row], wanted.uniforms[at : at + 1], wanted.sampling, [mask])
            assert sample(Logits(table), [alone]) == ([[tokens[at]]], [[logprobs[at]]])


def test_the_mass_of_a_mask_is_the_probability_of_its_tokens():
    logits = Logits(LOGITS)
    assert np.exp(logits.log_mass(0, np.array([True, False, False, True]))) == pytest.approx(0.6)
