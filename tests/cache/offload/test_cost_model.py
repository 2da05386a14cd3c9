"""Copy or compute again: decided by measured times, not upset by a hiccup, and never stuck with an old measurement."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.cache.offload.cost_model import CostModel, LinearCost

SIZES = [1, 12, 40, 3, 200, 12, 7, 90] * 8


def measured(copying, computing):
    """Costs after measurements from these functions of a number of tokens."""
    costs = CostModel()
    for tokens in SIZES:
        costs.computed(tokens, computing(tokens))
        costs.copied(tokens, copying(tokens))
    return costs


def test_before_both_are_measured_the_model_says_copy():
    costs = CostModel()
    assert costs.copy_is_cheaper(1)
    costs.copied(10, 99.0)
    assert costs.copy_is_cheaper(1)
    costs = CostModel()
    costs.computed(10, 1e-9)
    assert costs.copy_is_cheaper(1)


def test_a_slow_short_copy_does_not_stop_longer_copies():
    costs = CostModel()
    for rows in SIZES:
        costs.computed(rows, 1e-2 + 1e-4 * rows)
    for copies in range(10):  # what every copy takes is a millisecond
        assert costs.copy_is_cheaper(1) == (copies < 3)
        costs.copied(1, 1e-3)
    assert costs.copy_is_cheaper(100)
    costs.copied(100, 1e-3 + 1e-4)
    assert costs.copy_is_cheaper(100)
    assert not costs.copy_is_cheaper(1)


@pytest.mark.parametrize("tokens", [1, 10, 800])
def test_the_method_that_is_cheaper_per_token_is_used(tokens):
    assert measured(lambda n: 1e-5 * n, lambda n: 8e-4 * n).copy_is_cheaper(tokens)
    assert not measured(lambda n: 8e-4 * n, lambda n: 1e-5 * n).copy_is_cheaper(tokens)


def test_a_copy_with_a_fixed_time_pays_from_some_length_on():
    costs = measured(lambda n: 1e-3 + 1e-5 * n, lambda n: 1e-4 * n)  # even at 11.1 tokens
    assert not costs.copy_is_cheaper(6)
    assert costs.copy_is_cheaper(20)


def test_the_fixed_time_of_a_pass_is_not_charged_to_recomputed_rows():
    costs = measured(lambda n: 2e-4 * n, lambda n: 1e-2 + 1e-4 * n)
    assert not costs.copy_is_cheaper(30)


def test_a_hiccup_of_a_thousandfold_changes_no_decision():
    costs = measured(lambda n: 1e-5 * n, lambda n: 5e-5 * n)
    costs.copied(12, 12e-2)
    assert costs.copy_is_cheaper(12)
    costs = measured(lambda n: 5e-5 * n, lambda n: 1e-5 * n)
    costs.computed(12, 12e-2)
    assert not costs.copy_is_cheaper(12)


def test_a_changed_machine_changes_the_costs_after_some_measurements():
    costs = measured(lambda n: 1e-5 * n, lambda n: 5e-5 * n)
    for tokens in SIZES:
        costs.computed(tokens, 5e-5 * tokens)
        costs.copied(tokens, 1e-2 * tokens)
    assert not costs.copy_is_cheaper(12)
    for tokens in SIZES:
        costs.copied(tokens, 1e-5 * tokens)
    assert costs.copy_is_cheaper(12)


def test_a_first_measurement_that_was_far_off_is_forgotten():
    costs = CostModel()
    costs.copied(12, 1.0)
    for tokens in SIZES:
        costs.computed(tokens, 5e-5 * tokens)
        costs.copied(tokens, 1e-5 * tokens)
    assert costs.copy_is_cheaper(12)


def test_a_copy_is_tried_again_when_its_measure_is_old_and_not_earlier():
    costs = measured(lambda n: 1e-3 * n, lambda n: 1e-5 * n)
    for _ in range(CostModel.STALE - 1):
        costs.computed(12, 12e-5)
    assert not costs.copy_is_cheaper(12)
    costs.computed(12, 12e-5)
    assert costs.copy_is_cheaper(12)
    costs.copied(12, 12e-3)
    assert not costs.copy_is_cheaper(12)


SECONDS = st.floats(-1, 1e9) | st.sampled_from([math.inf, -math.inf, math.nan, 5e-324])


@given(st.lists(st.tuples(st.booleans(), st.integers(-1, 5000), SECONDS), max_size=40), st.integers(1, 5000))
def test_estimates_are_finite_never_negative_and_repeatable(told, tokens):
    both = [CostModel(), CostModel()]
    for costs in both:
        for copied, count, seconds in told:
            (costs.copied if copied else costs.computed)(count, seconds)
        for line in (costs.copying, costs.computing):
            assert 0 <= line.slope < math.inf
            assert 0 <= line.at(tokens) + 1e-9 * line.at(5000) < math.inf
    assert both[0].copy_is_cheaper(tokens) == both[1].copy_is_cheaper(tokens)


@pytest.mark.parametrize(("offset", "slope"), [(0, 1e-3), (1e-2, 1e-3), (1e-2, 1e-4)])
def test_measurements_on_a_line_give_that_line(offset, slope):
    line = LinearCost()
    for tokens in SIZES:
        line.tell(tokens, offset + slope * tokens)
    for tokens in (40, 200):
        assert line.at(tokens) == pytest.approx(offset + slope * tokens, rel=0.1)
