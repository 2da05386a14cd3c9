"""Strict JSON: no NaN, no infinite numbers, no deep nesting."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

DEEPEST = 100  # levels of nested lists and objects


def parse_strictly(raw: str | bytes) -> Any:
    """Parse JSON strictly: NaN, infinite numbers such as 1e999, and deep nesting are errors.

    Raises
    ------
    ValueError
        The message is a predicate, such as ``is not JSON``.
    """
    too_deep = f"is nested more than {DEEPEST} deep"
    try:
        value = json.loads(raw, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError(too_deep) from None
    except ValueError:
        raise ValueError("is not JSON") from None
    level, depth = [value], 0
    while level := [inner for outer in level for inner in _inside(outer)]:
        depth += 1
        if depth > DEEPEST:
            raise ValueError(too_deep)
    return value


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(number)
    return value


def _inside(value: object) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
