"""Regular expressions of users, with a bound on the text and on the time of a search."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.user_code import shown

LONGEST = 50_000
"""Characters at the end of a text that are searched."""
SECONDS = 1.0
"""Longest time of a search."""
FLAGS = {re.IGNORECASE: "I", re.MULTILINE: "M", re.DOTALL: "S", re.VERBOSE: "X", re.ASCII: "A"}


class BoundedPattern:
    """A regular expression of ``re`` that is searched with the package ``regex``, whose searches can be bounded in time.

    ``source``: the pattern, as a text or compiled.

    Raises
    ------
    re.error
        If it is no regular expression.
    ConfigError
        If it is none of ``regex``.
    """

    def __init__(self, source: str | re.Pattern[str]) -> None:
        self.compiled = re.compile(source)
        self._bounded  # noqa: B018 - compiled now, so that errors come first

    def matches(self, text: str) -> Iterator[Any]:
        """The matches in the last ``LONGEST`` characters of a text, in order.

        Raises
        ------
        TimeoutError
            If the search takes longer than ``SECONDS``.
        """
        text = text[-LONGEST:]
        try:
            yield from self._bounded.finditer(text, timeout=SECONDS)
        except TimeoutError:
            raise self._late(text) from None

    def is_whole(self, text: str) -> bool:
        """Whether the whole text is a match; False for a text that is too long. Raises TimeoutError as :meth:`matches`."""
        if len(text) > LONGEST:
            return False
        try:
            return self._bounded.fullmatch(text, timeout=SECONDS) is not None
        except TimeoutError:
            raise self._late(text) from None

    @cached_property
    def _bounded(self) -> Any:
        import regex

        flags = regex.V0
        for flag, name in FLAGS.items():
            flags |= getattr(regex, name) if self.compiled.flags & flag else 0
        try:
            return regex.compile(self.compiled.pattern, flags)
        except regex.error as error:
            raise ConfigError(
                f"{shown(self.compiled.pattern)} is no regular expression: {error}", hint="correct it"
            ) from None

    def _late(self, text: str) -> TimeoutError:
        return TimeoutError(
            f"the regular expression {shown(self.compiled.pattern)} takes more than {SECONDS:g} s on {len(text)} characters"
        )
