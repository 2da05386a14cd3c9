"""Prompts into tokens: plain text, or chat messages through the model's own template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rksc_tot.core.errors import EngineError
from rksc_tot.core.task import Message, Prompt
from rksc_tot.engine.tokenization.text import continuation, encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARK = "\u2402the assistant's words\u2403"  # in place of what the assistant has written since the prompt


def opens_reply(messages: Sequence[Message]) -> bool:
    """Whether the model is to begin a reply after these messages; else it continues the assistant's last message."""
    return not messages or messages[-1]["role"] != "assistant"


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
    """Tokens of a root prompt, with exactly one BOS token if the tokenizer writes one.

    Raises
    ------
    EngineError
        If the prompt is empty, or the chat template does not take its messages.
    """
    if isinstance(prompt, str):
        text, special = prompt, True
    else:
        text, special = _render(tokenizer, prompt), False
    ids = encode(tokenizer, text, special)
    eos = tokenizer.eos_token_id
    if special and ids and eos is not None and ids[-1] == eos and not text.endswith(str(tokenizer.eos_token)):
        ids.pop()  # some tokenizers close every text; a prompt is not closed
    if len(ids) > 1 and ids[0] == ids[1] == tokenizer.bos_token_id:
        ids.pop(0)
    if not ids:
        raise EngineError("the prompt is empty", hint="return at least one character from Task.prompt")
    return ids


def following_text(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message] | None, words: Prompt) -> str:
    """What follows a path: a text as it is, or messages as the turns after the assistant's, which the template closes.

    Parameters
    ----------
    tokenizer
        The model's tokenizer.
    messages
        What the prompt was made of; None: of plain text. The path is the assistant's reply to them, or, where the last
        message is the assistant's, its continuation.
    words
        What follows.

    Raises
    ------
    EngineError
        If the chat template does not take the messages.
    """
    if isinstance(words, str):
        return words
    if messages is None:
        raise EngineError(
            "chat messages cannot follow a prompt that is plain text",
            hint="return chat messages from Task.prompt too, or a string here",
        )
    whole = _render(tokenizer, [*_with_reply(messages), *words])
    _, found, after = whole.rpartition(MARK)
    if not found:
        raise EngineError("the chat template does not show the assistant's words", hint="use plain text prompts")
    return after


def following_tokens(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message] | None, words: Prompt
) -> list[int]:
    """Tokens of :func:`following_text`; EngineError if there are none."""
    text = following_text(tokenizer, messages, words)
    ids = continuation(tokenizer, text) if isinstance(words, str) else encode(tokenizer, text)
    if not ids:
        raise EngineError("the question is empty", hint="ask something")
    return ids


def _with_reply(messages: Sequence[Message]) -> list[Message]:
    """The messages and :data:`MARK` as the assistant's reply, or as the continuation of its last message."""
    if opens_reply(messages):
        return [*messages, {"role": "assistant", "content": MARK}]
    return [*messages[:-1], {"role": "assistant", "content": messages[-1]["content"] + MARK}]


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> str:
    """The messages as the template writes them, up to where the model goes on."""
    if not tokenizer.chat_template:
        raise EngineError("this model has no chat template", hint="return a string from Task.prompt")
    opens = opens_reply(messages)
    turns = [dict(message) for message in messages]
    how: dict[str, Any] = {"add_generation_prompt": opens, "continue_final_message": not opens}
    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, **how))
    except Exception as error:  # a template is a program: it may raise anything
        reason = f"{type(error).__name__}: {error}".partition("\n")[0].partition("! ")[0]
        if opens:
            raise EngineError(f"the chat template refused the messages: {reason}") from error
        raise EngineError(
            f"the chat template cannot continue the assistant's last message: {reason}",
            hint="end the messages with one of the user",
        ) from error
