"""A prompt in two forms: chat messages, and a text for models without a chat template."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from rksc_tot.core.task.task import Message


class ChatOrText(tuple[Message, ...]):
    """Chat messages for a model with a chat template; ``text`` is the prompt on a model without one. The engine chooses."""

    text: str

    def __new__(cls, messages: Iterable[Message], text: str) -> Self:
        """The messages, and the text that stands for them."""
        made = super().__new__(cls, messages)
        made.text = text
        return made
