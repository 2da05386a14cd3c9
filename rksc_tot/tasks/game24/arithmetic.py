"""Exact arithmetic on short expressions: a solver and a reader, both with rational numbers and neither with ``eval``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

LONGEST = 100  # characters of an expression; bounds the depth of the reader's recursion
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
    """Whether ``goal`` can be made from all of ``numbers`` with + - * / in any order, fractions on the way included."""
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
    """Value of an expression over whole numbers with + - * / and parentheses, and the numbers it uses, in order.

    Raises
    ------
    ValueError
        If it is no such expression, longer than ``LONGEST`` characters, or divides by zero.
    """
    if len(expression) > LONGEST:
        raise ValueError(f"longer than {LONGEST} characters")
    reader = _Reader(list(_tokens(expression)))
    value = reader.sum()
    if reader.next is not None:
        raise ValueError(f"{reader.next!r} is out of place")
    return value, reader.numbers


def _tokens(expression: str) -> Iterator[str]:
    text, at = expression.rstrip(), 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if not found:
            raise ValueError(f"{text[at:].lstrip()[0]!r} does not belong in an expression")
        yield found[1] or found[2]
        at = found.end()


class _Reader:
    """Recursive descent: sum -> product -> factor."""

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
