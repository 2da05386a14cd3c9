"""How nodes compare: best first, so that near ties fall the same way on every device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from rksc_tot.core.tree import Node

Key = Callable[[Node], float | None]


def ranked(nodes: Iterable[Node], key: Key | None = None) -> list[Node]:
    """Nodes sorted best first: by ``key`` (default: the score), then by likelihood, then lower id.

    Both numbers are rounded to four significant digits, so that near ties fall the same way where the last bits differ, as
    on another device. Values on either side of a rounding boundary may still fall differently. None ranks last.
    """
    by = key or _score
    return sorted(nodes, key=lambda node: (-rounded(by(node)), -rounded(node.likelihood), node.id))


def rounded(value: float | None) -> float:
    """A value as it is compared: to four significant digits, None below everything.

    Scores come from probabilities, which differ from device to device by about as much, relatively, as logits: 1e-5 in fp32.
    """
    return -math.inf if value is None else float(f"{value:.4g}")


def _score(node: Node) -> float | None:
    return node.score
