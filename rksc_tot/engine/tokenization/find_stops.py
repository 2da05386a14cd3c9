"""Stop strings in a text, which may span tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rksc_tot.core.task.stop_rules import StopRule


class Cut(NamedTuple):
    """A cut after ``kept`` whole tokens and ``rest``, the kept part of the token that the cut divides."""

    kept: int
    rest: str


def find_stop(text: str, searched: int, stop: Sequence[str]) -> tuple[int, int] | None:
    """(start, end) of the earliest stop string that ends after ``searched``; the longest if several start at the same place."""
    found: tuple[int, int] | None = None
    for string in stop:
        at = text.find(string, max(0, searched - len(string) + 1))
        if at >= 0 and (found is None or (at, -len(string)) < (found[0], found[0] - found[1])):
            found = (at, at + len(string))
    return found


def leading_stops(text: str, stop: Sequence[str]) -> int:
    """Length of the stop strings at the start of a text, with the white space before each."""
    begin = 0
    while (found := find_stop(text[begin:], 0, stop)) and not text[begin : begin + found[0]].strip():
        begin += found[1]
    return begin


def find_end(
    text: str, searched: int, stop: Sequence[str], skip_blank: bool, rule: StopRule | None = None
) -> tuple[int, int] | None:
    """Start and end of the separator that ends a thought: of the earlier one of a stop string and of what ``rule`` finds.

    Stop strings are found as in :func:`find_stop`. ``skip_blank``: skip stop strings at the start.
    """
    by_string = _string_end(text, searched, stop, skip_blank)
    by_rule = None if rule is None else rule.find(text)
    return min(by_string, by_rule) if by_string and by_rule else by_string or by_rule


def _string_end(text: str, searched: int, stop: Sequence[str], skip_blank: bool) -> tuple[int, int] | None:
    found = find_stop(text, searched, stop)
    if found is None or not skip_blank or found[0] >= (begin := leading_stops(text, stop)):
        return found
    later = find_stop(text[begin:], 0, stop)
    return None if later is None else (begin + later[0], begin + later[1])


def cut_at(ends: Sequence[int | None], text: str, length: int) -> Cut:
    """Cut the tokens of ``text`` after ``length`` characters; ``ends`` as in ``Written``."""
    kept, reached = 0, 0
    for count, end in enumerate(ends, 1):
        if reached >= length or (end is not None and end > length):
            break
        if end is not None:
            kept, reached = count, end
    return Cut(kept, text[reached:length])
