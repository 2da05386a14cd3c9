from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.tasks.game24.arithmetic import LONGEST, apply, evaluate, reachable
from rksc_tot.tasks.game24.canonical_form import Expression


@pytest.mark.parametrize(
    ("numbers", "answer"),
    [
        ((4, 5, 6, 10), True),
        ((3, 3, 8, 8), True),
        ((1, 1, 1, 1), False),
        ((1, 5, 5, 5), True),
        ((13, 13, 13, 13), False),
    ],
)
def test_the_solver_uses_intermediate_fractions(numbers, answer):
    assert reachable(numbers, 24) is answer


@pytest.mark.parametrize(
    ("text", "value"),
    [("(10 - 4) * 5 - 6", 24), ("8 / (3 - 8 / 3)", 24), ("1-2-3", -4), ("12/4/3", 1), ("((7))", 7), ("2+3*4", 14)],
)
def test_evaluates_with_precedence_and_left_to_right(text, value):
    assert evaluate(text)[0] == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "(",
        "1 +",
        "+ 1",
        "1 2",
        "(1",
        "1)",
        "2 ** 3",
        "-1",
        "1.5",
        "__import__('os')",
        "1 / (2 - 2)",
        "٣ + 1",
        "()",
    ],
)
def test_an_invalid_expression_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"\w"):
        evaluate(text)


@given(st.text(alphabet="0123456789+-*/() ", max_size=3 * LONGEST))
def test_the_parser_raises_only_value_errors(text):
    try:
        value, used = evaluate(text)
    except ValueError:
        return
    assert isinstance(value, Fraction)
    assert used


def test_the_deepest_nesting_is_parsed_without_a_recursion_error():
    depth = LONGEST // 2 - 1
    assert evaluate("(" * depth + "7" + ")" * depth) == (7, [7])
    with pytest.raises(ValueError, match="longer"):
        evaluate("(" * LONGEST + "7" + ")" * LONGEST)


def trees(leaves):
    return st.recursive(leaves, lambda inner: st.tuples(st.sampled_from("+-*/"), inner, inner), max_leaves=5)


def build(tree):
    """Expression, plain text and value of a random tree; None where it divides by zero."""
    if isinstance(tree, int):
        return Expression.number(tree), str(tree), Fraction(tree)
    op, *sides = tree
    left, right = map(build, sides)
    if left is None or right is None:
        return None
    value = apply(left[2], op, right[2])
    return None if value is None else (left[0].combine(op, right[0]), f"({left[1]} {op} {right[1]})", value)


@given(trees(st.integers(0, 20)))
def test_canonical_text_has_the_value_and_the_numbers_of_the_computation(tree):
    made = build(tree)
    if made is None:
        return
    expression, plain, value = made
    assert expression.value == value
    assert evaluate(str(expression))[0] == value
    assert sorted(evaluate(str(expression))[1]) == sorted(evaluate(plain)[1])


def mirrored(tree):
    if isinstance(tree, int):
        return tree
    op, left, right = tree
    sides = (mirrored(left), mirrored(right))
    return (op, *(sides[::-1] if op in "+*" else sides))


@given(trees(st.integers(0, 20)))
def test_operand_order_does_not_change_the_canonical_text(tree):
    one, other = build(tree), build(mirrored(tree))
    assert (one and str(one[0])) == (other and str(other[0]))
