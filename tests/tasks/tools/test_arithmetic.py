from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.tasks.tools.arithmetic import calculate, shown_value


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("6 * 7", 42),
        ("1,250 × 4 − 10", 4990),
        ("2 + 3 * (4 - 1)", 11),
        ("7 / 2", Fraction(7, 2)),
        ("7 // 2 + 7 % 4", 6),
        ("-2 ** 2", -4),
        ("2 ** 3 ** 2", 512),
        ("2 ^ -1", Fraction(1, 2)),
        ("0.1 + .2", Fraction(3, 10)),
        ("--5", 5),
        ("(((1)))", 1),
        ("1 ** 99999", 1),
    ],
)
def test_the_value_is_exact(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "a number is missing"),
        ("2 +", "a number is missing"),
        ("2 3", "'3' is out of place"),
        ("(2", "not closed"),
        (") 2", "out of place"),
        ("2 ** * 3", "out of place"),
        ("__import__('os')", "is no number and no operator"),
        ("1 / (2 - 2)", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("1 // 0", "division by zero"),
        ("2 ** 0.5", "not a whole number"),
        ("9 ** 9 ** 9", "too large"),
        ("9 ** 999 * 9 ** 999", "too large"),
        ("1" * 201, "longer than 200"),
        ("(" * 50 + "1" + ")" * 50, "nested deeper than 20"),
        ("-" * 100 + "1", "nested deeper than 20"),
        ("٣ + 1", "is no number"),
    ],
)
def test_anything_else_is_refused_with_the_reason(expression, reason):
    with pytest.raises(ValueError, match=reason):
        calculate(expression)


@given(st.text("0123456789.,+-*/%^()x ", max_size=200))
def test_no_text_raises_anything_but_a_reason(text):
    try:
        shown_value(calculate(text))
    except ValueError as reason:
        assert str(reason)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(84), "84"),
        (Fraction(7, 2), "3.5"),
        (Fraction(1, 3), "0.333333333333"),
        (Fraction(-1, 8), "-0.125"),
        (Fraction(10**400 + 1, 3), "about " + "3" * 399 + "4"),
    ],
)
def test_a_value_is_shown_as_people_write_it(value, text):
    assert shown_value(value) == text
