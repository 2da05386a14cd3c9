"""How thinking blocks are written in the tokens of one model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AppendedText:
    """A text that is appended to a path, and its tokens."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ThinkingFormat:
    """How thinking blocks are written after one prompt.

    Attributes
    ----------
    opener, closer
        The markers, as they are found in the model's text.
    source
        Where the markers were found, for messages.
    opens
        Whether the prompt opens a block itself.
    prompt
        Tokens of the prompt, without such a block.
    opening
        What opens a block at the end of the prompt.
    reopening
        What opens a block after a thought.
    closing
        What closes a block by force, and begins the reply.
    reply
        What begins the reply after the model's own closing marker; often empty.
    header
        What begins a reply without a block; empty unless replies have a header of their own (channels).
    """

    opener: str
    closer: str
    source: str
    opens: bool
    prompt: tuple[int, ...]
    opening: AppendedText
    reopening: AppendedText
    closing: AppendedText
    reply: AppendedText
    header: AppendedText
