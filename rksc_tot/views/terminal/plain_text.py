"""Text that others wrote, made safe to show: no control characters, no markup, one line."""

from __future__ import annotations

from rich.text import Text

LONGEST = 240  # characters kept of one thought; the terminal's width cuts further


def one_line(text: str, longest: int = LONGEST) -> str:
    """The text on one line, with control and invisible characters replaced, cut after ``longest`` characters."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return "".join(c if c.isprintable() else " " if c in "\n\t\r" else "\N{REPLACEMENT CHARACTER}" for c in cut).strip()


def plain(text: str, style: str = "") -> Text:
    """A rich text that shows ``text`` as it is: square brackets are no markup, and a long line ends in an ellipsis."""
    return Text(one_line(text), style=style, no_wrap=True, overflow="ellipsis")
