"""Sampling: the filters, the streams, and independence of the batch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.engine.base import Sampling
from rksc_tot.engine.sampler import Draw, Stream, filtered, sample

LOGITS = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.1]]))


def kept(**settings):
    return (filtered(LOGITS, Sampling(**settings))[0] > 0).tolist()


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
def test_filters_keep_what_they_say(settings, expected):
    assert kept(**settings) == expected


def test_temperature_scales_log_odds():
    probabilities = filtered(LOGITS, Sampling(temperature=0.5))[0]
    assert float(probabilities[0] / probabilities[1]) == pytest.approx(4.0, rel=1e-5)


@given(st.integers(0, 2**128 - 1))
def test_a_stream_is_the_same_however_far_it_is_read(key):
    assert [Stream(key)[i] for i in (50, 3, 0)] == [Stream(key)[i] for i in (50, 3, 0)]
    short, long = Stream(key), Stream(key)
    long[200]
    assert short[5] == long[5]


def test_draws_do_not_depend_on_their_neighbours():
    torch.manual_seed(0)
    logits = torch.randn(5, 40)
    draws = [Draw(row, u, Sampling(temperature=t)) for row in range(5) for u in (0.1, 0.6, 0.99) for t in (0, 0.7, 1.0)]
    tokens, logprobs = sample(logits, draws)
    for draw, token, logprob in zip(draws, tokens, logprobs, strict=True):
        assert sample(logits[draw.row : draw.row + 1], [draw._replace(row=0)]) == ([token], [pytest.approx(logprob)])


def test_frequencies_follow_the_distribution():
    source = np.random.default_rng(0)
    draws = [Draw(0, float(u), Sampling()) for u in source.random(20_000)]
    tokens, _ = sample(LOGITS, draws)
    share = np.bincount(tokens, minlength=4) / len(tokens)
    assert share == pytest.approx([0.5, 0.25, 0.15, 0.1], abs=0.012)


def test_no_draw_falls_outside_the_filter():
    for u in (0.0, 0.5, 1 - 1e-16, float(np.nextafter(1, 0))):
        tokens, _ = sample(LOGITS, [Draw(0, u, Sampling(top_k=2))])
        assert tokens[0] < 2


def test_log_probabilities_ignore_temperature_and_filters():
    _, (logprob,) = sample(LOGITS, [Draw(0, 0.0, Sampling(temperature=0.1, top_k=1))])
    assert logprob == pytest.approx(np.log(0.5), abs=1e-6)
