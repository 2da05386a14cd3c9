"""Hints for unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The beginning of a hint, such as ``did you mean 'beam'? ``; empty if no known name is like ``name``.

    Ignores case, and what stands before a colon, as in ``embedded:sudoku4``.
    """
    names = {_compared(each): each for each in known}
    near = get_close_matches(_compared(name), names, n=1)
    return f"did you mean {names[near[0]]!r}? " if near else ""


def _compared(name: str) -> str:
    return name.rpartition(":")[2].casefold()
