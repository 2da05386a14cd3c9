"""Answers in texts: where a path says its answer.

====================  ==================================================================================================
``number``            the last number of the text; in the reply to the closing the first one, or that after ``=``
``boxed``             the content of the last ``\\boxed{…}``, with nested braces
``after:MARKER``      the rest of the line after the last ``MARKER``, in any case, such as ``after:####`` or ``after:Answer:``
``choice``            the letter of a choice, such as ``B``
``regex:PATTERN``     group 1 of the last match, or the whole match without a group
``json``              the last JSON object or list
``module:function``   a function from the text to the answer or None
====================  ==================================================================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.bounded_pattern import BoundedPattern
from rksc_tot.core.plugins.nearest import did_you_mean
from rksc_tot.core.plugins.user_code import plain_str, shown
from rksc_tot.tasks.rows.functions import named_function
from rksc_tot.tasks.rows.numeric_equality import numbers_in

FORMS = "number, boxed, after:MARKER, choice, regex:PATTERN, json, module:function"
KINDS = [form.partition(":")[0] for form in FORMS.split(", ")[:-1]]
LETTER = r"([A-Ja-j])(?![^\W_])"
CHOICES = (
    re.compile(rf"(?:answer|option|choice)\b(?:\s+is)?[\s:*(\[{{\"']*{LETTER}", re.IGNORECASE),
    re.compile(r"\(([A-Ja-j])\)|\\boxed\{([A-Ja-j])\}|\*\*([A-J])\b"),
    re.compile(r"^(?:[^\S\n]|[>*(])*([A-J])(?=[.):*]|[^\S\n]*$)", re.MULTILINE),
    re.compile(r"(?<![^\W_])([B-HJ])(?![^\W_]|')"),
)
"""Ways to write a choice, the surest first."""


class AnswerForm:
    """Finds answers of one form.

    * ``name``: as it is written in a setting.
    * ``explicit``: whether a path that says an answer of this form is complete.
    * ``closing``: the text that asks a path for its answer.
    """

    name: str = ""
    explicit: bool = True
    closing: str = "\nThe answer is"

    def find(self, text: str) -> str | None:
        """The answer in the text of a path, None if there is none."""
        raise NotImplementedError

    def in_reply(self, asked: str, reply: str) -> str | None:
        """The answer in the model's reply to the closing text ``asked``."""
        return self.find(asked + reply)


class LastNumber(AnswerForm):
    """The last number of a text."""

    name, explicit = "number", False

    def find(self, text: str) -> str | None:
        """The last number."""
        return next(reversed(numbers_in(text)), None)

    def in_reply(self, asked: str, reply: str) -> str | None:
        """The first number of the reply; of an equation in the first sentence with a number, that after the last ``=``."""
        for sentence in re.split(r"(?<=[.!?])\s|\n", reply):
            if found := numbers_in(sentence.rpartition("=")[2]) or numbers_in(sentence):
                return found[0]
        return None


class Boxed(AnswerForm):
    r"""The content of ``\boxed{…}``."""

    name = "boxed"
    closing = "\nThe answer is \\boxed{"
    OPENING: ClassVar[str] = "\\boxed{"

    def find(self, text: str) -> str | None:
        """The content of the last box that is closed."""
        end = len(text)
        while (at := text.rfind(self.OPENING, 0, end)) >= 0:
            depth, begin = 1, at + len(self.OPENING)
            for brace in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, begin, end):
                depth += {"{": 1, "}": -1}.get(brace[0], 0)
                if not depth:
                    return text[begin : brace.start()].strip() or None
            end = at
        return None


@dataclass
class After(AnswerForm):
    """The rest of a line after a marker."""

    marker: str

    def __post_init__(self) -> None:
        self.name, self.closing = f"after:{self.marker}", "\n" + self.marker

    def find(self, text: str) -> str | None:
        """The rest of the line after the last marker that something follows."""
        for rest in reversed(re.split(re.escape(self.marker), text, flags=re.IGNORECASE)[1:]):
            if found := rest.strip(" \t*_:").partition("\n")[0].strip(" \t*_").removesuffix("."):
                return found
        return None

    def in_reply(self, asked: str, reply: str) -> str | None:
        """The first line of the reply that is not blank or a colon."""
        return self.find(asked + reply.lstrip(" \t\n*_:"))


class ChoiceLetter(AnswerForm):
    """The letter of a choice."""

    name, explicit = "choice", False

    def find(self, text: str) -> str | None:
        """The last letter that is written as a choice, in upper case."""
        for pattern in CHOICES:
            for match in reversed([*pattern.finditer(text)]):
                return next(letter for letter in match.groups() if letter).upper()
        return None


@dataclass
class Matching(AnswerForm):
    """What a regular expression finds."""

    pattern: BoundedPattern

    def __post_init__(self) -> None:
        self.name = f"regex:{self.pattern.compiled.pattern}"

    def find(self, text: str) -> str | None:
        """Group 1 of the last match. Raises TimeoutError if the search takes too long."""
        last = next(reversed([*self.pattern.matches(text)]), None)
        return None if last is None else last[1 if self.pattern.compiled.groups else 0]

    def in_reply(self, asked: str, reply: str) -> str | None:
        """The match in the reply, else the whole reply."""
        found = self.find(reply)
        return found if found is not None else self.find(asked + reply) or reply.strip() or None


class LastJson(AnswerForm):
    """The last JSON object or list of a text."""

    name = "json"
    closing = "\nThe answer as JSON:"
    MOST: ClassVar[int] = 1000  # places at the end of the text where a value may begin

    def find(self, text: str) -> str | None:
        """The last object or list that is not inside another one."""
        decoder, end, last = json.JSONDecoder(), 0, None
        openings = [match.start() for match in re.finditer(r"[{\[]", text)]
        for begin in openings[-self.MOST :]:
            if begin >= end:
                try:
                    _, end = decoder.raw_decode(text, begin)
                    last = text[begin:end]
                except (ValueError, RecursionError):
                    continue
        return last


@dataclass
class ByFunction(AnswerForm):
    """The answer by a function of the text."""

    function: Callable[[str], object]

    def __post_init__(self) -> None:
        self.explicit = False
        self.name = f"{self.function.__module__}:{getattr(self.function, '__qualname__', type(self.function).__name__)}"

    def find(self, text: str) -> str | None:
        """What the function returns, as a text."""
        found = self.function(text)
        return None if found is None else plain_str(found)


def answer_form(given: str | re.Pattern[str] | Callable[[str], object]) -> AnswerForm:
    """The form of answers that a setting describes.

    Raises
    ------
    ConfigError
        If there is no such form.
    """
    if isinstance(given, re.Pattern):
        pattern: object = given.pattern
        if not isinstance(pattern, str):
            raise ConfigError(f"answer {shown(given)} is a pattern of bytes", hint="write one of text, such as r'...'")
        return Matching(BoundedPattern(given))
    if not isinstance(given, str):
        if callable(given):
            return ByFunction(given)
        raise ConfigError(f"answer is {shown(given)}", hint=f"there are {FORMS}")
    for form in (LastNumber(), Boxed(), ChoiceLetter(), LastJson()):
        if given == form.name:
            return form
    kind, _, value = given.partition(":")
    if kind == "after" and value.strip():
        return After(value.strip())
    if kind == "regex" and value:
        try:
            return Matching(BoundedPattern(value))
        except re.error as error:
            raise ConfigError(f"answer {given!r} is no regular expression: {error}", hint="correct it") from None
    function = named_function("answer", given)
    if function is None:
        raise ConfigError(f"answer is {given!r}", hint=f"{did_you_mean(kind, KINDS)}there are {FORMS}")
    return ByFunction(function)
