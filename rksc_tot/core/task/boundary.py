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

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.nearest import did_you_mean
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.core.task.stop_rules import FenceEnd, NumberedStep, Occurrences, SentenceEnd, StopRule


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
            hint = f"{did_you_mean(kind, FORMS)}there are {', '.join(FORMS.values())}"
            raise ConfigError(f"there is no boundary {shown(form)}", hint=hint)
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
