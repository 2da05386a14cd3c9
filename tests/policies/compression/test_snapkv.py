import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.core.errors import CompressionError, ConfigError
from rksc_tot.policies.compression.base import View
from rksc_tot.policies.compression.selection import chosen, selection_rng
from rksc_tot.policies.compression.snapkv import SnapKV, smoothed


def kept(attention, budget, prompt=0, **settings):
    attention = np.asarray(attention, dtype=float)
    layers, heads, n = attention.shape
    return chosen(
        SnapKV(**settings), View(np.arange(n), prompt, layers, heads, attention), budget, selection_rng(0)
    ).tolist()


def peaks(n, *at):
    row = np.zeros(n)
    row[list(at)] = 1
    return row


def test_a_peak_keeps_its_neighbours():
    assert kept([[peaks(20, 10)]], 5) == [[[8, 9, 10, 11, 12]]]
    assert kept([[peaks(20, 10)]], 5, kernel=1) == [[[10, 16, 17, 18, 19]]]  # the rest by position


def test_each_head_keeps_its_own_most_attended_tokens():
    attention = [[peaks(20, 3), peaks(20, 10)], [peaks(20, 16), peaks(20, 3)]]
    assert kept(attention, 3, kernel=3) == [[[2, 3, 4], [9, 10, 11]], [[15, 16, 17], [2, 3, 4]]]


def test_one_set_goes_by_the_mean_of_all_heads():
    attention = [[peaks(20, 10), peaks(20, 3)], [peaks(20, 16), peaks(20, 3)]]
    assert kept(attention, 3, kernel=3, sets="one") == [2, 3, 4]


def test_a_pinned_prompt_stays_without_attention():
    assert kept([[peaks(20, 10)]], 5, prompt=3, kernel=3) == [[[0, 1, 2, 10, 11]]]
    assert kept([[peaks(20, 10)]], 3, prompt=3, kernel=3, pin_prompt=False) == [[[9, 10, 11]]]


def test_ties_go_to_later_tokens():
    assert kept([[np.full(8, 0.25)]], 3, kernel=1) == [[[5, 6, 7]]]
    assert kept([[[0, 1, 0, 1, 0, 1, 0.0]]], 2, kernel=1) == [[[3, 5]]]


@pytest.mark.parametrize("kernel", [1, 3, 5, 99])
@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_equal_attention_favours_neither_end(kernel, n):
    assert (smoothed(np.full((2, 3, n), 0.25), kernel) == 0.25).all()


@given(st.lists(st.floats(0, 1), max_size=12), st.integers(0, 7))
def test_smoothing_is_the_mean_of_existing_neighbours(row, half):
    n = len(row)
    means = [np.mean(row[max(0, at - half) : at + half + 1]) for at in range(n)]
    assert smoothed(np.array(row), 2 * half + 1) == pytest.approx(means)


def test_without_attention_the_error_says_so():
    with pytest.raises(CompressionError, match=r"^compression policy 'snapkv' needs attention, which was not measured"):
        chosen(SnapKV(), View(np.arange(9), 0, 1, 1), 3, selection_rng(0))


@pytest.mark.parametrize("kernel", [0, 2, -1])
def test_a_kernel_without_a_middle_is_refused_with_its_value(kernel):
    with pytest.raises(ConfigError, match=f"compression policy 'snapkv': kernel: .*{kernel}"):
        SnapKV(kernel=kernel)
