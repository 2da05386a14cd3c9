"""Value of an arithmetic expression, exactly, without ``eval``, with bounds on length, depth and size of numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

LONGEST = 200  # characters of an expression
DEEPEST = 20  # nested parentheses and signs
MOST_BITS = 4000  # of a numerator or denominator
DIGITS = 12  # shown of a value that is not whole

_TOKEN = re.compile(r"\s*([0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+|\*\*|//|[-+*/%^()])")
_SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})


def calculate(expression: str) -> Fraction:
    """The value of an expression of numbers, ``+ - * / // % **`` (or ``^``) and parentheses.

    Raises
    ------
    ValueError
        If it is malformed, divides by zero, or is longer, deeper or larger than the bounds. The text is the reason.
    """
    if len(expression) > LONGEST:
        raise ValueError(f"longer than {LONGEST} characters")
    parser = _BoundedParser(_tokens(expression.translate(_SPELLINGS)))
    value = parser.sum(0)
    if parser.tokens:
        raise ValueError(f"{parser.tokens[-1]!r} is out of place")
    return value


def shown_value(value: Fraction) -> str:
    """A value as a whole number, or as a decimal number of at most 12 digits."""
    if value.denominator == 1:
        return str(value.numerator)
    try:
        return f"{float(value):.{DIGITS}g}"
    except OverflowError:
        return "about " + str(round(value))


def _tokens(expression: str) -> list[str]:
    """The tokens, last first."""
    found, at, text = [], 0, expression.rstrip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ValueError(f"{text[at:].lstrip()[:1]!r} is no number and no operator")
        found.append(token[1])
        at = token.end()
    return found[::-1]


class _BoundedParser:
    """Recursive descent. ``tokens``: what is left, the next one last."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens

    def sum(self, depth: int) -> Fraction:
        return self._chain(("+", "-"), self._product, depth)

    def _product(self, depth: int) -> Fraction:
        return self._chain(("*", "/", "//", "%"), self._signed, depth)

    def _chain(self, operators: tuple[str, ...], part: Callable[[int], Fraction], depth: int) -> Fraction:
        value = part(depth)
        while self.tokens and self.tokens[-1] in operators:
            value = _bounded(_apply(value, self.tokens.pop(), part(depth)))
        return value

    def _signed(self, depth: int) -> Fraction:
        if depth > DEEPEST:
            raise ValueError(f"nested deeper than {DEEPEST}")
        if self.tokens and self.tokens[-1] in "+-":
            sign = -1 if self.tokens.pop() == "-" else 1
            return sign * self._signed(depth + 1)
        return self._power(depth)

    def _power(self, depth: int) -> Fraction:
        base = self._atom(depth)
        if self.tokens and self.tokens[-1] in ("**", "^"):
            self.tokens.pop()
            return _bounded(_power(base, self._signed(depth + 1)))
        return base

    def _atom(self, depth: int) -> Fraction:
        if not self.tokens:
            raise ValueError("a number is missing at the end")
        token = self.tokens.pop()
        if token == "(":
            value = self.sum(depth + 1)
            if not self.tokens or self.tokens.pop() != ")":
                raise ValueError("a parenthesis is not closed")
            return value
        if not token[-1].isdigit():
            raise ValueError(f"{token!r} is out of place")
        return Fraction(token.replace(",", ""))


def _apply(left: Fraction, operator: str, right: Fraction) -> Fraction:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if not right:
        raise ValueError("division by zero")
    if operator == "/":
        return left / right
    return Fraction(left // right) if operator == "//" else left % right


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ValueError("the exponent is not a whole number")
    if not base and exponent < 0:
        raise ValueError("division by zero")
    if (_bits(base) - 1) * abs(exponent) > MOST_BITS:  # the result has at least so many bits
        raise ValueError("the number is too large")
    return Fraction(base**exponent.numerator)


def _bounded(value: Fraction) -> Fraction:
    if _bits(value) > MOST_BITS:
        raise ValueError("the number is too large")
    return value


def _bits(value: Fraction) -> int:
    return max(abs(value.numerator), value.denominator).bit_length()
