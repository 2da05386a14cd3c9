"""The text that a chat template puts around the contents of messages."""

from __future__ import annotations

from collections.abc import Sequence

from rksc_tot.core.errors import EngineError
from rksc_tot.engine.tokenization.text import TextTokenizer

FIRST = 0xE000  # characters that Unicode leaves to private use


class ChatTurns:
    """The pieces of text before, between and after the contents of messages with these roles.

    Raises
    ------
    EngineError
        If there is no template, or it does not keep contents in their order.
    """

    def __init__(self, tokenizer: TextTokenizer, roles: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self.around = _around(tokenizer, roles)

    def tokens(self, *parts: int | str) -> list[int]:
        """Tokens of pieces (by number) and contents (texts). Only pieces make control tokens."""
        pieces = [""]
        for part in parts:
            first, *rest = [self.around[part]] if isinstance(part, int) else self._tokenizer.pieces(part)
            pieces = [*pieces[:-1], pieces[-1] + first, *rest]
        return self._tokenizer.encode_pieces(pieces)


def _around(tokenizer: TextTokenizer, roles: Sequence[str]) -> list[str]:
    if not tokenizer.raw.chat_template:
        raise EngineError("the reward model's tokenizer has no chat template", hint="give the model's own tokenizer")
    marks = [chr(FIRST + n) for n in range(len(roles))]
    turns = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
    try:
        text = str(tokenizer.raw.apply_chat_template(turns, tokenize=False))
    except Exception as error:  # a template is a program: it may raise anything
        raise EngineError(f"the chat template refused the messages: {type(error).__name__}: {error}") from error
    pieces = []
    for mark in marks:
        before, found, text = text.partition(mark)
        if not found or mark in text:
            raise EngineError("the chat template changes the order of messages, or leaves one out")
        pieces.append(before)
    return [*pieces, text]
