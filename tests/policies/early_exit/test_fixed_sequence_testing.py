import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.core.errors import ConfigError
from rksc_tot.policies.early_exit.fixed_sequence_testing import (
    alarm,
    at_least,
    at_most,
    examples_needed,
    fixed_sequence,
    upper_bound,
)

NEEDED = {  # by δ, for α = 5 %: how many examples with 0, 1, 2 and 5 errors
    0.01: (299, 473, 628, 1049),
    0.02: (149, 236, 313, 523),
    0.05: (59, 93, 124, 208),
    0.10: (29, 46, 61, 103),
}


@pytest.mark.parametrize("delta", NEEDED)
def test_the_examples_needed_are_those_of_the_table(delta):
    assert tuple(examples_needed(delta, 0.05, errors) for errors in (0, 1, 2, 5)) == NEEDED[delta]


@given(st.integers(0, 60), st.integers(0, 60), st.floats(0.001, 0.999))
def test_tails_are_sums_of_exact_binomial_terms(k, n, p):
    terms = [math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(n + 1)]
    assert at_most(k, n, p) == pytest.approx(min(1.0, sum(terms[: k + 1])), abs=1e-12)
    assert at_least(k, n, p) == pytest.approx(sum(terms[k:]), abs=1e-12)


@given(st.floats(0.002, 0.5), st.floats(0.001, 0.5), st.integers(0, 12))
def test_the_number_of_examples_needed_is_minimal(delta, alpha, errors):
    n = examples_needed(delta, alpha, errors)
    assert at_most(errors, n, delta) <= alpha
    assert at_most(errors, n - 1, delta) > alpha


@given(st.integers(1, 3000), st.data())
def test_the_upper_bound_is_where_so_few_errors_become_improbable(n, data):
    k = data.draw(st.integers(0, n - 1))
    bound = upper_bound(k, n, 0.05)
    assert k / n < bound <= 1
    assert at_most(k, n, bound) == pytest.approx(0.05, rel=1e-6)


@pytest.mark.parametrize(("k", "n", "bound"), [(0, 0, 1.0), (5, 5, 1.0), (0, 299, 0.0099691), (1, 20, 0.216107)])
def test_upper_bounds_are_those_of_the_tables(k, n, bound):
    assert upper_bound(k, n) == pytest.approx(bound, abs=1e-6)


def test_a_walk_ends_at_its_first_failure():
    asked = []

    def counts():
        for pair in [(400, 0), (500, 1), (500, 4), (5000, 0)]:
            asked.append(pair)
            yield pair

    walk = fixed_sequence(counts(), 0.01, 0.05)
    assert [tried.passed for tried in walk] == [True, True, False]
    assert asked == [(400, 0), (500, 1), (500, 4)]
    assert walk[0].p == pytest.approx(0.99**400)


def test_a_rule_that_never_acts_shows_nothing():
    assert [tried.passed for tried in fixed_sequence([(0, 0)], 0.5, 0.5)] == [False]


@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, math.nan, math.inf])
@pytest.mark.parametrize("name", ["delta", "alpha"])
def test_a_rate_or_level_out_of_range_is_refused_with_its_value(name, value):
    arguments = {"delta": 0.01, "alpha": 0.05} | {name: value}
    with pytest.raises(ConfigError, match=rf"^{name} is {value} - give a number between 1e-06 and 1"):
        fixed_sequence([], **arguments)
    with pytest.raises(ConfigError, match=f"^{name} is"):
        examples_needed(**arguments)


def test_the_walk_accepts_a_bad_rule_with_probability_at_most_alpha():
    """Among many walks over rules of known risk, a share of at most about α accepts a rule that errs more often than δ."""
    import random

    rng, delta, alpha = random.Random(0), 0.1, 0.1
    risks, broken = [0.02, 0.05, 0.08, 0.11, 0.14], 0
    for _ in range(600):
        draws = [rng.random() for _ in range(150)]
        counts = [(len(draws), sum(draw < risk for draw in draws)) for risk in risks]
        accepted = [
            risk for risk, tried in zip(risks, fixed_sequence(counts, delta, alpha), strict=False) if tried.passed
        ]
        broken += bool(accepted) and accepted[-1] > delta
    assert broken / 600 <= alpha + 0.04
    assert broken > 0  # the walk does reach them: else this would show nothing


def test_an_audit_raises_no_alarm_at_the_promised_rate_however_long_it_goes_on():
    import random

    rng, delta, alpha, false = random.Random(1), 0.05, 0.1, 0
    for _ in range(400):
        flips, raised = 0, False
        for audited in range(1, 401):
            if rng.random() < delta:
                flips += 1
                raised = raised or alarm(audited, flips, delta, alpha)
        false += raised
    assert false / 400 <= alpha + 0.03


@pytest.mark.parametrize(
    ("audited", "flips", "raised"),
    [(0, 0, False), (1000, 0, False), (2, 1, True), (3, 1, False), (300, 3, False), (100, 12, True)],
)
def test_an_alarm_needs_more_flips_than_chance_explains(audited, flips, raised):
    assert alarm(audited, flips, 0.01, 0.05) is raised
