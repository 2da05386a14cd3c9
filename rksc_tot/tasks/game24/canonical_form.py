"""Expressions in canonical form: equal computations have equal texts, whatever the order of their parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal


@dataclass(frozen=True)
class Expression:
    """A number, a sum of terms, or a product of factors.

    * ``kind``: which of the three.
    * ``front``: the added terms or multiplied factors. ``back``: the subtracted terms or the divisors.

    Nested sums and products are flattened and their parts are sorted, so ``a - (b - c)`` and ``c + a - b`` are equal.
    """

    kind: Literal["number", "+", "*"]
    value: Fraction
    front: tuple[Expression, ...] = ()
    back: tuple[Expression, ...] = ()

    @classmethod
    def number(cls, value: Fraction | int) -> Expression:
        """The expression of one number."""
        return cls("number", Fraction(value))

    def combine(self, op: str, other: Expression) -> Expression:
        """``self op other``. In a division, ``other`` must not be zero."""
        kind: Literal["+", "*"] = "+" if op in "+-" else "*"
        front, back = self._parts(kind)
        more, less = other._parts(kind)
        if op in "-/":
            more, less = less, more
        value = {
            "+": lambda: self.value + other.value,
            "-": lambda: self.value - other.value,
            "*": lambda: self.value * other.value,
            "/": lambda: self.value / other.value,
        }[op]()
        return Expression(kind, value, _ordered(front + more), _ordered(back + less))

    def _parts(self, kind: str) -> tuple[tuple[Expression, ...], tuple[Expression, ...]]:
        return (self.front, self.back) if self.kind == kind else ((self,), ())

    def __str__(self) -> str:
        if self.kind == "number":
            return str(self.value)
        first, then = (" + ", " - ") if self.kind == "+" else (" * ", " / ")
        inner = [f"({part})" if self.kind == "*" and part.kind == "+" else str(part) for part in self.front]
        outer = [f"({part})" if self.kind == "*" and part.kind == "+" else str(part) for part in self.back]
        return then.join([first.join(inner), *outer])


def _ordered(parts: tuple[Expression, ...]) -> tuple[Expression, ...]:
    """Largest value first, then by text."""
    return tuple(sorted(parts, key=lambda part: (-part.value, str(part))))


def expression_of(numbers: Iterable[int], steps: Iterable[tuple[Fraction | int, str, Fraction | int]]) -> Expression:
    """The last result of ``left op right`` steps on numbers and earlier results, as one expression."""
    pool = [Expression.number(number) for number in numbers]
    for left, op, right in steps:
        pool.append(_take(pool, left).combine(op, _take(pool, right)))
    return pool[-1]


def _take(pool: list[Expression], value: Fraction | int) -> Expression:
    """Remove and return the expression of that value, the first by text among several."""
    found = min((part for part in pool if part.value == value), key=str)
    pool.remove(found)
    return found
