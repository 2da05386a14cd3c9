"""The rules of a step such as ``10 - 4 = 6 (left: 5 6 6)``, for the game of 24 and for countdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import TypeVar

from rksc_tot.core.task import Reject

N = TypeVar("N", int, Fraction)


def numbers_after(
    before: Iterable[N],
    step: tuple[N, str, N, N, Sequence[N]],
    result_of: Callable[[N, str, N], N | None],
) -> tuple[N, ...]:
    """The sorted numbers left after a step.

    Parameters
    ----------
    before
        The numbers before it.
    step
        As it was written: left number, operator, right number, result, numbers left.
    result_of
        The result of an operation, None if it is not allowed.

    Raises
    ------
    Reject
        If the step breaks a rule.
    """
    left, op, right, result, after = step
    remaining = Counter(before)
    for number in (left, right):
        if not remaining[number]:
            raise Reject(f"there is no {number} to use")
        remaining[number] -= 1
    if result_of(left, op, right) != result:
        raise Reject(f"{left} {op} {right} is not {result}")
    remaining[result] += 1
    if Counter(after) != +remaining:
        raise Reject(f"the numbers left are {' '.join(map(str, sorted(remaining.elements())))}")
    return tuple(sorted(after))
