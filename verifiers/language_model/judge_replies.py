"""Reads a judge's reply in words: a verdict by fixed rules, or none.

A reply counts only if it names one verdict. The last ``Verdict: …`` decides; without one, the only verdict that the text names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

LONGEST = 4000  # characters of a reply that are read, from its end
_MARKED = re.compile(
    r"\b(?:verdict|answer|score|rating|choice|winner)\b[\s*_:=\"'(]*(?:is\b)?[\s*_:=\"'(]*", re.IGNORECASE
)
_WORDS = {"true": "yes", "false": "no", "correct": "yes", "incorrect": "no", "right": "yes", "wrong": "no"}
_OTHER = {"yes": "no", "no": "yes"}
_END = r"""(?=\s*(?:[.,;:!*"')\]-]|$))"""  # after "no", which may also begin "no error"
_YES_NO = re.compile(rf"(?<![^\W_])(yes(?![^\W_])|no{_END})", re.IGNORECASE | re.MULTILINE)
_RIGHT_WRONG = re.compile(rf"(?<![^\W_])({'|'.join(_WORDS)})(?![^\W_])", re.IGNORECASE)
_NEGATION = re.compile(r"(?:\bnot|n't|\bnever)\s+(?:\w+\s+){0,2}$", re.IGNORECASE)
_OF_TEN = re.compile(r"(?<![\w.,-])(10|[1-9])(?:\s*/\s*10|\s+out\s+of\s+10)\b")
_RATING = re.compile(r"(?<![\w.,-])(10|[1-9])(?![\w%]|[.,]\d)")
_SIDE = re.compile(r"(?<![\w.,-])([12])(?![\w%]|[.,]\d)|\b(?:tie|equal)\b", re.IGNORECASE)

Read = Callable[[str], "str | None"]


def verdict(reply: str, read: Read) -> str | None:
    """The verdict of a reply, None if it has none or contradicts itself. ``read``: finds the only verdict in a text."""
    text = reply[-LONGEST:]
    marked = [match.end() for match in _MARKED.finditer(text)]
    for start in reversed(marked):
        line = text[start:].partition("\n")[0]
        if (found := read(line)) is not None:
            return found
    return read(text)


def yes_no(text: str) -> str | None:
    """``yes`` or ``no``, if the text says only one of them; "not right" is ``no``."""
    found = {match[1].lower() for match in _YES_NO.finditer(text)}
    for match in _RIGHT_WRONG.finditer(text):
        word = _WORDS[match[1].lower()]
        found.add(_OTHER[word] if _NEGATION.search(text[max(0, match.start() - 40) : match.start()]) else word)
    return found.pop() if len(found) == 1 else None


def rating(text: str) -> str | None:
    """``1`` to ``10``, if the text has only one such number; a number out of 10 goes first."""
    found = set(_OF_TEN.findall(text)) or set(_RATING.findall(text))
    return found.pop() if len(found) == 1 else None


def side(text: str) -> str | None:
    """``1``, ``2`` or ``tie``, if the text names only one of them."""
    found = {match[1] or "tie" for match in _SIDE.finditer(text)}
    return found.pop() if len(found) == 1 else None


READERS: Mapping[str, Read] = {"yes_no": yes_no, "rating": rating, "pairs": side}
"""By the scale of a judge."""
