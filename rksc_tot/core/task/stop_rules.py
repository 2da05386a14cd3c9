"""Rules that find the end of a thought where stop strings cannot: the n-th string, a numbered step, a sentence, a fence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class StopRule:
    """Finds the end of a thought where stop strings cannot.

    The rule gets the text from the beginning of the thought after each token. What it finds in a text must be what it finds in
    each longer text, so a rule waits until no further character can change its decision.

    * ``ending``: what stands between two thoughts. It follows a thought that ended with the end of the model's text.
    """

    ending: ClassVar[str] = "\n"

    def find(self, text: str) -> tuple[int, int] | None:
        """Where the thought ends and where the separator after it ends; None if the thought goes on.

        The separator, ``text[start:end]``, may be empty. Text after it was read to decide, and is dropped.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Occurrences(StopRule):
    """The ``count``-th occurrence of a string after text that is not blank."""

    string: str
    count: int

    @property
    def ending(self) -> str:  # type: ignore[override]
        """The string."""
        return self.string

    def find(self, text: str) -> tuple[int, int] | None:
        """The occurrence."""
        left, begin = self.count, 0
        while (at := text.find(self.string, begin)) >= 0:
            left -= bool(text[begin:at].strip())
            begin = at + len(self.string)
            if not left:
                return at, begin
        return None


@dataclass(frozen=True)
class NumberedStep(StopRule):
    """The line that has the number after the thought's first number. Text before the first number belongs to that step."""

    def find(self, text: str) -> tuple[int, int] | None:
        """The white space before the next number."""
        first: int | None = None
        for line in NUMBER.finditer(text):
            if first is None:
                first = int(line[1])
            elif int(line[1]) == first + 1:
                return len(text[: line.start()].rstrip()), line.start()
        return None


@dataclass(frozen=True)
class SentenceEnd(StopRule):
    """The end of the ``count``-th sentence, and the line break after it, if there is one."""

    count: int
    ending: ClassVar[str] = ""

    def find(self, text: str) -> tuple[int, int] | None:
        """The end of the sentence."""
        end = 0
        for _ in range(self.count):
            if (sentence := SENTENCE.match(text, end)) is None:
                return None
            end = sentence.end()
        return end, end + text.startswith("\n", end)


@dataclass(frozen=True)
class FenceEnd(StopRule):
    """The end of the first code block."""

    def find(self, text: str) -> tuple[int, int] | None:
        """The line break after the closing fence."""
        found = FENCE.search(text)
        return None if found is None else (found.end(), found.end() + 1)


NUMBER = re.compile(r"^(?:[#>*_]+[ \t]*)?(?:step[ \t]+)?(\d{1,4})[*_]*[.):][*_]*(?=\s)", re.MULTILINE | re.IGNORECASE)
SENTENCE = re.compile(r"\s*+(?:\d++[.)]\s++)?+\S[^\n]*?(?:[.!?…]++[\"'”’)\]*_]*+(?=\s)|[。！？]|(?=\n))")
FENCE = re.compile(r"^ {0,3}(```+|~~~+)[^\n]*\n(?:[^\n]*\n)*? {0,3}\1[`~]*[ \t]*(?=\n)", re.MULTILINE)
