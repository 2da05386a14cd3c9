"""Tokens of prompts and questions: of plain text, or of chat messages by the model's chat template.

Only the template makes control tokens. Names of control tokens in a message are cut (see :class:`TextTokenizer`): a mark at each
cut passes through the template with the message, and the text between marks is tokenised separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rksc_tot.core.errors import EngineError
from rksc_tot.core.task import Message, Prompt
from rksc_tot.engine.tokenization.text import TextTokenizer
from rksc_tot.engine.tokenization.thinking import BlockMarkers, known_markers, opened_at, thinking_switches

USER_INSTEAD = "put the text of the system message at the beginning of the user's message"
PRIVATE = range(0xE000, 0xF900)  # characters that Unicode leaves to private use


class Following(NamedTuple):
    """Text that follows a path.

    Attributes
    ----------
    pieces
        Pieces of the text that are tokenised separately.
    plain
        Whether it is plain text; else it has control tokens of the chat template.
    """

    pieces: tuple[str, ...]
    plain: bool

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.pieces)

    def tokens(self, tokenizer: TextTokenizer, more: str = "") -> list[int]:
        """Tokens of the text, with ``more`` at the end."""
        if self.plain:
            return tokenizer.continuation(self.text + more)
        first, *rest = tokenizer.pieces(more)
        return tokenizer.encode_pieces([*self.pieces[:-1], self.pieces[-1] + first, *rest])


def opens_reply(messages: Sequence[Message]) -> bool:
    """Whether the model begins a reply after these messages; else it continues the assistant's last message."""
    return not messages or messages[-1]["role"] != "assistant"


def prompt_tokens(tokenizer: TextTokenizer, prompt: Prompt) -> list[int]:
    """Tokens of a root prompt.

    Raises
    ------
    EngineError
        If the prompt is empty, or the chat template does not take its messages.
    """
    if isinstance(prompt, str):
        return _not_empty(tokenizer.encode_prompt(prompt))
    cut, _ = _marks(tokenizer, prompt)
    return _pieces(tokenizer, _render(tokenizer, prompt, cut), cut)


def thinking_prompt(tokenizer: TextTokenizer, prompt: Prompt, markers: BlockMarkers) -> tuple[list[int], list[str]]:
    """A root prompt without the thinking block that it opens.

    A prompt opens a block if it ends with the opening marker, or if the assistant's last message has a block that is not closed.

    Returns
    -------
    tuple
        Tokens of the prompt up to the block, and the pieces of its text from there on; no pieces if it opens no block.

    Raises
    ------
    EngineError
        As :func:`prompt_tokens`.
    """
    if isinstance(prompt, str):
        at = opened_at(prompt, markers.opener, markers.closer, len(prompt))
        if at is None:
            return prompt_tokens(tokenizer, prompt), []
        return _not_empty(tokenizer.encode_prompt(prompt[:at])), [prompt[at:]]
    cut, _ = _marks(tokenizer, prompt)
    text = _render(tokenizer, prompt, cut, **thinking_switches(tokenizer, True))
    said = "" if opens_reply(prompt) else cut.join(tokenizer.pieces(prompt[-1]["content"])).strip()
    at = opened_at(text, markers.opener, markers.closer, max(0, text.rfind(said)))
    if at is None:
        return _pieces(tokenizer, text, cut), []
    return _pieces(tokenizer, text[:at], cut), text[at:].split(cut)


def _pieces(tokenizer: TextTokenizer, text: str, cut: str) -> list[int]:
    return _not_empty(tokenizer.encode_pieces(text.split(cut)))


def _not_empty(ids: list[int]) -> list[int]:
    if not ids:
        raise EngineError("the prompt is empty", hint="return at least one character from Task.prompt")
    return ids


def following(tokenizer: TextTokenizer, messages: Sequence[Message] | None, words: Prompt) -> Following:
    """The text that follows a path: plain text, or messages as turns after the assistant's, which the template closes.

    The model's reply to the messages is meant to come at once: the template turns thinking off, and a thinking block that it
    opens all the same is closed.

    Parameters
    ----------
    tokenizer
        The model's tokenizer.
    messages
        Chat messages of the prompt; None: plain text. The path is the assistant's reply to them. If the last message is the
        assistant's, the path continues it.
    words
        The text or messages that follow.

    Raises
    ------
    EngineError
        If the chat template does not take the messages.
    """
    if isinstance(words, str):
        return Following((words,), True)
    if messages is None:
        raise EngineError(
            "chat messages cannot follow a prompt that is plain text",
            hint="return chat messages from Task.prompt too, or a string here",
        )
    cut, reply = _marks(tokenizer, [*messages, *words])
    whole = _render(tokenizer, [*_with_reply(messages, reply), *words], cut, **thinking_switches(tokenizer, False))
    _, found, after = whole.rpartition(reply)
    if not found:
        raise EngineError("the chat template leaves out the assistant's message", hint="use plain text prompts")
    markers = known_markers(tokenizer) if opens_reply(words) else None
    if markers is not None:
        after += markers.direct_reply(after)
    return Following(tuple(after.split(cut)), False)


def following_tokens(tokenizer: TextTokenizer, messages: Sequence[Message] | None, words: Prompt) -> list[int]:
    """Tokens of :func:`following`; EngineError if there are none."""
    ids = following(tokenizer, messages, words).tokens(tokenizer)
    if not ids:
        raise EngineError("the question is empty", hint="ask something")
    return ids


def turns_after(messages: Sequence[Message] | None, words: Prompt) -> Sequence[Message] | None:
    """The chat messages before the reply that a path ends in, once ``words`` continue the path. None: plain text.

    Earlier replies are placeholders, as the template only has to know that there were such turns.
    """
    return messages if messages is None or isinstance(words, str) else (*_with_reply(messages, "."), *words)


def _with_reply(messages: Sequence[Message], reply: str) -> list[Message]:
    """The messages with ``reply`` as the assistant's reply, or appended to the assistant's last message."""
    if opens_reply(messages):
        return [*messages, {"role": "assistant", "content": reply}]
    return [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + reply}]


def _marks(tokenizer: TextTokenizer, messages: Sequence[Message]) -> tuple[str, str]:
    """Two characters that occur neither in the messages nor in the template: for cuts, and for the assistant's reply."""
    taken = {*str(tokenizer.raw.chat_template), *(c for message in messages for c in "".join(message.values()))}
    free = (mark for mark in map(chr, PRIVATE) if mark not in taken)
    return next(free), next(free)


def _render(tokenizer: TextTokenizer, messages: Sequence[Message], cut: str, **switches: Any) -> str:
    """The messages in the chat template, up to where the model continues, with a mark at each cut.

    ``switches``: arguments of the template that turn thinking on or off.
    """
    if not tokenizer.raw.chat_template:
        raise EngineError("this model has no chat template", hint="return a string from Task.prompt")
    opens = opens_reply(messages)
    turns = [
        {key: text if key == "role" else cut.join(tokenizer.pieces(text)) for key, text in message.items()}
        for message in messages
    ]
    how: dict[str, Any] = {"add_generation_prompt": opens, "continue_final_message": not opens}
    try:
        rendered = str(tokenizer.raw.apply_chat_template(turns, tokenize=False, **how, **switches))
    except Exception as error:  # a template is a program: it may raise anything
        reason = f"{type(error).__name__}: {error}".partition("\n")[0].partition("! ")[0]
        if opens:
            system = any(turn["role"] == "system" for turn in turns)
            hint = USER_INSTEAD if system else "give messages of other roles, or the prompt as a text"
            raise EngineError(f"the chat template refused the messages: {reason}", hint=hint) from error
        raise EngineError(
            f"the chat template cannot continue the assistant's last message: {reason}",
            hint="end the messages with a user message",
        ) from error
    for turn in turns:
        if turn["role"] == "system" and turn["content"].strip() not in rendered:
            raise EngineError("the chat template leaves out the system message", hint=USER_INSTEAD)
    return rendered
