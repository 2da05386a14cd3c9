"""States and steps of the embedded model's game of 24: whole numbers 0..199 and four operations.

A state is the sorted tuple of the numbers left. A step replaces two of them by their result. These functions give the exact
training targets: which steps are legal, and which states can still reach 24.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

GOAL = 24
LARGEST = 199  # every number is one token; steps with larger results are not legal

State = tuple[int, ...]


class ArithmeticStep(NamedTuple):
    """``left op right = result``, leaving ``after`` (sorted)."""

    left: int
    op: str
    right: int
    result: int
    after: State

    def __str__(self) -> str:
        return f"{self.left} {self.op} {self.right} = {self.result} (left: {' '.join(map(str, self.after))})"


def combine(small: int, large: int, op: str) -> int | None:
    """The whole result 0..199 of ``op`` on two numbers, larger one first for - and /; None if there is none."""
    if op == "+":
        result = small + large
    elif op == "-":
        result = large - small
    elif op == "*":
        result = small * large
    elif small == 0 or large % small:
        return None
    else:
        result = large // small
    return result if result <= LARGEST else None


def slots(state: State) -> Iterator[tuple[int, int, str, int | None]]:
    """Every (i, j, op, result) with i < j, in the order of the value question."""
    for i in range(len(state)):
        for j in range(i + 1, len(state)):
            for op in "+-*/":
                yield i, j, op, combine(state[i], state[j], op)


@cache
def legal_steps(state: State) -> tuple[ArithmeticStep, ...]:
    """All distinct legal steps from a state."""
    steps = {}
    for i, j, op, result in slots(state):
        if result is None:
            continue
        small, large = state[i], state[j]
        left, right = (small, large) if op in "+*" else (large, small)
        after = tuple(sorted((*state[:i], *state[i + 1 : j], *state[j + 1 :], result)))
        steps[left, op, right] = ArithmeticStep(left, op, right, result, after)
    return tuple(steps.values())


@cache
def reaches(state: State) -> bool:
    """Whether 24 can be made from all numbers of a state."""
    if len(state) == 1:
        return state[0] == GOAL
    return any(reaches(step.after) for step in legal_steps(state))


@cache
def good_steps(state: State) -> tuple[ArithmeticStep, ...]:
    """The legal steps after which 24 can still be made."""
    return tuple(step for step in legal_steps(state) if reaches(step.after))


def value_label(state: State) -> str:
    """``impossible`` (24 is out of reach), ``sure`` (two good steps or more, or at most two numbers), else ``likely``."""
    if not reaches(state):
        return "impossible"
    return "sure" if len(state) <= 2 or len(good_steps(state)) >= 2 else "likely"
