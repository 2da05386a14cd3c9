"""Confidence intervals of a measured share."""

from __future__ import annotations

import math


def wilson(solved: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson score interval of ``solved`` out of ``n``, 95 % by default; (0, 1) for n = 0.

    Raises
    ------
    ValueError
        If ``solved`` is not within 0..n.
    """
    if not 0 <= solved <= n:
        raise ValueError(f"{solved} solved of {n}")
    if n == 0:
        return 0.0, 1.0
    share, weight = solved / n, z * z / n
    middle = (share + weight / 2) / (1 + weight)
    reach = z * math.sqrt(share * (1 - share) / n + weight / (4 * n)) / (1 + weight)
    return max(0.0, middle - reach), min(1.0, middle + reach)
