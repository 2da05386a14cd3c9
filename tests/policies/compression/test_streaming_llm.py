import numpy as np
import pytest

from rksc_tot.policies.compression.base import View
from rksc_tot.policies.compression.selection import chosen, selection_rng
from rksc_tot.policies.compression.streaming_llm import Streaming


def kept(policy, budget, n=20, prompt=6):
    return chosen(policy, View(np.arange(n), prompt, 2, 2), budget, selection_rng(0)).tolist()


@pytest.mark.parametrize(
    ("settings", "budget", "stays"),
    [
        ({}, 9, [0, 1, 2, 3, 4, 5, 17, 18, 19]),
        ({"pin_prompt": False}, 9, [0, 1, 2, 3, 15, 16, 17, 18, 19]),
        ({"pin_prompt": False, "sinks": 0}, 3, [17, 18, 19]),
        ({"sinks": 8}, 9, [0, 1, 2, 3, 4, 5, 6, 7, 19]),
        ({"pin_prompt": False}, 4, [0, 1, 2, 3]),
        ({"pin_prompt": False}, 2, [0, 1]),
    ],
)
def test_sinks_and_the_most_recent_stay_and_a_pinned_prompt(settings, budget, stays):
    assert kept(Streaming(**settings), budget) == stays


def test_streaming_is_deterministic():
    sets = {chosen(Streaming(), View(np.arange(50), 5, 1, 1), 20, selection_rng(seed)).tobytes() for seed in range(5)}
    assert len(sets) == 1
