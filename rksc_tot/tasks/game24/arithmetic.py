"""Exact arithmetic with rational numbers: a solver, and a parser of short expressions without ``eval``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

LONGEST = 100  # most characters of an expression, which limits the recursion of the parser
NUMBER = r"-?[0-9]{1,6}(?:/[1-9][0-9]{0,5})?"

_TOKEN = re.compile(r"\s*(?:([0-9]{1,6})|([-+*/()]))")


def apply(left: Fraction, op: str, right: Fraction) -> Fraction | None:
    """``left op right``, or None for a division by zero."""
    if op == "+":
        return left + right
    if op == "-":
        return left - right
    if op == "*":
        return left * right
    return left / right if right else None


def reachable(numbers: Sequence[Fraction | int], goal: int) -> bool:
    """Whether ``goal`` can be made from all ``numbers`` with + - * / in any order. Intermediate results may be fractions."""
    return _reachable(tuple(sorted(map(Fraction, numbers))), Fraction(goal), set())


def _reachable(state: tuple[Fraction, ...], goal: Fraction, dead: set[tuple[Fraction, ...]]) -> bool:
    if len(state) <= 1:
        return state == (goal,)
    if state in dead:
        return False
    for i, j in ((i, j) for i in range(len(state)) for j in range(len(state)) if i != j):
        rest = [n for at, n in enumerate(state) if at not in (i, j)]
        for made in (apply(state[i], op, state[j]) for op in "+-*/"):
            if made is not None and _reachable(tuple(sorted([*rest, made])), goal, dead):
                return True
    dead.add(state)
    return False


def evaluate(expression: str) -> tuple[Fraction, list[int]]:
    """The value of an expression of whole numbers, + - * / and parentheses, and its numbers in order.

    Raises
    ------
    ValueError
        If the expression is malformed, longer than ``LONGEST`` characters, or divides by zero.
    """
    if len(expression) > LONGEST:
        raise ValueError(f"longer than {LONGEST} characters")
    parser = _Parser(list(_tokens(expression)))
    value = parser.sum()
    if parser.next is not None:
        raise ValueError(f"{parser.next!r} is out of place")
    return value, parser.numbers


def _tokens(expression: str) -> Iterator[str]:
    text, at = expression.rstrip(), 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if not found:
            raise ValueError(f"{text[at:].lstrip()[0]!r} does not belong in an expression")
        yield found[1] or found[2]
        at = found.end()


class _Parser:
    """A recursive-descent parser: sum, product, factor."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.at = 0
        self.numbers: list[int] = []

    @property
    def next(self) -> str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self) -> str | None:
        token = self.next
        self.at += 1
        return token

    def sum(self) -> Fraction:
        value = self.product()
        while self.next in ("+", "-"):
            value = self.join(value, self.product)
        return value

    def product(self) -> Fraction:
        value = self.factor()
        while self.next in ("*", "/"):
            value = self.join(value, self.factor)
        return value

    def join(self, left: Fraction, operand: Callable[[], Fraction]) -> Fraction:
        op = self.take()
        made = apply(left, op or "", operand())
        if made is None:
            raise ValueError("it divides by zero")
        return made

    def factor(self) -> Fraction:
        token = self.take()
        if token == "(":
            value = self.sum()
            if self.take() != ")":
                raise ValueError("a parenthesis is not closed")
            return value
        if token is None or not token.isdigit():
            raise ValueError("it ends early" if token is None else f"{token!r} is out of place")
        self.numbers.append(int(token))
        return Fraction(token)
