"""Learn then Test: thresholds with a guarantee. Angelopoulos et al. 2021, https://arxiv.org/abs/2110.01052.

Finds, among candidate rules, one that errs with probability at most δ. Each candidate is tested on examples that did not make
it. The p-value of "it errs more often than δ" is exact (binomial). Candidates are tested in a fixed order, each at level α,
until the first one fails (fixed-sequence testing). With probability at least 1 - α, no candidate that passed errs more often
than δ. The only assumption is that the test examples are independent draws from the later decisions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from rksc_tot.core.errors import ConfigError

LEAST = 1e-6  # a smaller rate would need too many examples


class Tried(NamedTuple):
    """One test: the rule acted on ``n`` examples and erred on ``k``; its p-value, and whether it passed."""

    n: int
    k: int
    p: float
    passed: bool


def check_risk(delta: float, alpha: float) -> None:
    """Check that δ and α are strictly between 0 and 1.

    Raises
    ------
    ConfigError
        If one is not. The message has the value and the range.
    """
    for name, value in (("delta", delta), ("alpha", alpha)):
        if not LEAST <= value < 1:  # also true for NaN
            raise ConfigError(
                f"{name} is {value}", hint=f"give a number between {LEAST:g} and 1, such as delta 0.01 and alpha 0.05"
            )


def at_most(k: int, n: int, p: float) -> float:
    """P(Bin(n, p) <= k): the chance of k errors or fewer among n, each with probability p (0..1)."""
    if k < 0:
        return 0.0
    if k >= n or p <= 0:
        return 1.0
    if p >= 1:
        return 0.0
    whole = math.lgamma(n + 1)
    terms = (
        math.exp(whole - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * math.log(p) + (n - i) * math.log1p(-p))
        for i in range(k + 1)
    )
    return min(1.0, math.fsum(terms))


def at_least(k: int, n: int, p: float) -> float:
    """P(Bin(n, p) >= k)."""
    if k <= 0:
        return 1.0
    return at_most(n - k, n, 1 - p)


def examples_needed(delta: float, alpha: float, errors: int = 0) -> int:
    """The least number of examples at which that many errors show, at level α, that the error rate is at most δ.

    299 for δ = 1 %, α = 5 % and no error.
    """
    check_risk(delta, alpha)
    low, high = errors, errors + 1
    while at_most(errors, high, delta) > alpha:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at_most(errors, middle, delta) <= alpha else (middle, high)
    return high


def upper_bound(k: int, n: int, alpha: float = 0.05) -> float:
    """Clopper and Pearson's one-sided upper bound, at confidence 1 - α, of the error rate given k errors among n."""
    if k >= n:
        return 1.0
    low, high = k / n, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if at_most(k, n, middle) > alpha else (low, middle)
    return high


def fixed_sequence(counts: Iterable[tuple[int, int]], delta: float, alpha: float) -> list[Tried]:
    """Test candidates, given as (n, k), in order up to and including the first that fails.

    Raises
    ------
    ConfigError
        If δ or α is not strictly between 0 and 1.
    """
    check_risk(delta, alpha)
    walk: list[Tried] = []
    for n, k in counts:
        p = at_most(k, n, delta) if n else 1.0
        walk.append(Tried(n, k, p, p <= alpha))
        if not walk[-1].passed:
            break
    return walk


def alarm(audited: int, flips: int, delta: float, alpha: float) -> bool:
    """Whether the flips of an audit contradict an error rate of at most δ. Call it after each flip.

    The j-th flip among n audited decisions has the p-value P(Bin(n, δ) >= j) and is tested at level α / (j (j + 1)). These
    levels add up to α, so an audit of any length gives a false alarm with probability at most α.
    """
    return flips > 0 and at_least(flips, audited, delta) <= alpha / (flips * (flips + 1))
