"""How the scores of the steps of a path become its score."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "last": lambda steps: steps[-1],
    "min": min,
    "mean": lambda steps: math.fsum(steps) / len(steps),
    "product": math.prod,
}
