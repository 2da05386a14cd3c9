"""Ranks nodes, best first, with scores rounded so that near ties are decided the same way on every device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from rksc_tot.core.tree import Node

Key = Callable[[Node], float | None]


def ranked(nodes: Iterable[Node], key: Key | None = None) -> list[Node]:
    """Sort nodes best first: by ``key`` (default: the score), then by likelihood, then by lower id. None ranks last.

    Both numbers are rounded to four significant digits, so that differences in the last bits, as between devices, do not
    change the order. Values close to a rounding boundary may still be ordered differently.
    """
    by = key or _score
    return sorted(nodes, key=lambda node: (-rounded(by(node)), -rounded(node.likelihood), node.id))


def rounded(value: float | None) -> float:
    """A value rounded to four significant digits; None is -∞.

    In fp32, probabilities and scores differ between devices by about 1e-5, relatively.
    """
    return -math.inf if value is None else float(f"{value:.4g}")


def _score(node: Node) -> float | None:
    return node.score
