"""Makes text of a model or a user safe to show: one line, without control characters and markup."""

from __future__ import annotations

from rich.text import Text

LONGEST = 240  # most characters of one thought


def one_line(text: str, longest: int = LONGEST) -> str:
    """The text on one line, with control and invisible characters replaced, cut after ``longest`` characters."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return "".join(c if c.isprintable() else " " if c in "\n\t\r" else "\N{REPLACEMENT CHARACTER}" for c in cut).strip()


def plain(text: str, style: str = "") -> Text:
    """A rich text of ``text`` on one line, without markup; a long line ends in an ellipsis."""
    return Text(one_line(text), style=style, no_wrap=True, overflow="ellipsis")
