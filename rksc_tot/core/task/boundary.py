"""How thoughts are told apart: where one ends and the next begins. The setting ``Task.thoughts`` is such a boundary.

=====================  =================================================================================================
``lines``              a thought is one line; ``lines:3``: three lines that are not blank
``paragraphs``         a thought ends at a blank line; ``paragraphs:2``: at the second one
``numbered``           a thought is one numbered step, such as ``2. …``, ``2) …`` or ``Step 2: …``, of any number of lines
``tag:step``           a thought ends at the tag ``</step>``
``sentences:2``        a thought is two sentences; the end of a line ends a sentence
``tokens:64``          a thought is 64 tokens, or fewer at the end of the model's text
``fences``             a thought ends at the end of a code block (three backticks or tildes)
``whole``              a thought is the model's whole reply
=====================  =================================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.user_code import shown


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
class Boundary:
    """Where a thought ends.

    * ``name``: as :meth:`of` reads it.
    * ``stop``: strings that end a thought.
    * ``rule``: a further rule that ends a thought.
    * ``tokens``: a thought of this many tokens is complete; None: no such limit.
    * ``keep_stop``, ``skip_blank``: as in :class:`~rksc_tot.Task`.
    """

    name: str
    stop: tuple[str, ...] = ()
    rule: StopRule | None = None
    tokens: int | None = None
    keep_stop: bool = True
    skip_blank: bool = True

    @property
    def ending(self) -> str:
        """The text between two thoughts on a path; empty if there is none."""
        if not self.keep_stop:
            return ""
        return self.stop[0] if self.stop else self.rule.ending if self.rule is not None else ""

    @classmethod
    def of(cls, form: str) -> Boundary:
        """The boundary of that name, such as ``paragraphs`` or ``sentences:2``.

        Raises
        ------
        ConfigError
            If there is no such boundary.
        """
        kind, colon, value = form.partition(":")
        if kind not in FORMS or (colon and not value):
            raise ConfigError(f"there is no boundary {shown(form)}", hint=f"there are {', '.join(FORMS.values())}")
        if kind == "tag":
            if not re.fullmatch(r"[\w.-]+", value):
                raise ConfigError(f"the tag is {shown(value)}", hint="write its name, such as tag:step")
            return cls(form, (f"</{value}>",))
        if kind in PLAIN and value:
            raise ConfigError(f"{kind} takes no number, but it is {shown(form)}", hint=f"write {kind}")
        if value and not (value.isascii() and value.isdigit() and 0 < int(value) < 1_000_000):
            raise ConfigError(f"{kind} has the number {shown(value)}", hint=f"write a number from 1, such as {kind}:2")
        if kind == "tokens" and not value:
            raise ConfigError("tokens has no number", hint="write how many tokens a thought has, such as tokens:64")
        return PLAIN[kind](form) if kind in PLAIN else COUNTED[kind](form, int(value or 1))


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

PLAIN: dict[str, Callable[[str], Boundary]] = {
    "numbered": lambda name: Boundary(name, rule=NumberedStep()),
    "fences": lambda name: Boundary(name, rule=FenceEnd()),
    "whole": Boundary,
}
COUNTED: dict[str, Callable[[str, int], Boundary]] = {
    "lines": lambda name, n: _nth(name, "\n", n),
    "paragraphs": lambda name, n: _nth(name, "\n\n", n),
    "sentences": lambda name, n: Boundary(name, rule=SentenceEnd(n)),
    "tokens": lambda name, n: Boundary(name, tokens=n),
}
FORMS = {
    "lines": "lines",
    "paragraphs": "paragraphs",
    "numbered": "numbered",
    "tag": "tag:NAME",
    "sentences": "sentences:N",
    "tokens": "tokens:N",
    "fences": "fences",
    "whole": "whole",
}
"""How each boundary is written, by kind."""


def _nth(name: str, string: str, count: int) -> Boundary:
    return Boundary(name, (string,)) if count == 1 else Boundary(name, rule=Occurrences(string, count))
