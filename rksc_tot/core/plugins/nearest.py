"""Hints for unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The beginning of a hint, such as ``did you mean 'beam'? ``; empty if no known name is like ``name``. Ignores case."""
    names = {each.casefold(): each for each in known}
    near = get_close_matches(name.casefold(), names, n=1)
    return f"did you mean {names[near[0]]!r}? " if near else ""
