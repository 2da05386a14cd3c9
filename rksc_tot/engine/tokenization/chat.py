"""Prompts into tokens: plain text, or chat messages through the model's own template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rksc_tot.core.errors import EngineError
from rksc_tot.core.task import Message, Prompt
from rksc_tot.engine.tokenization.text import continuation, encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARK = "\u2402the assistant's words\u2403"  # stands for what the assistant has said so far


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
    """Tokens of a root prompt, with exactly one BOS if the tokenizer has the habit of writing one."""
    if isinstance(prompt, str):
        text, special = prompt, True
    else:
        text, special = _render(tokenizer, prompt, add_generation_prompt=True), False
    ids = encode(tokenizer, text, special)
    eos = tokenizer.eos_token_id
    if special and ids and eos is not None and ids[-1] == eos and not text.endswith(str(tokenizer.eos_token)):
        ids.pop()  # some tokenizers close every text; a prompt is not closed
    if len(ids) > 1 and ids[0] == ids[1] == tokenizer.bos_token_id:
        ids.pop(0)
    if not ids:
        raise EngineError("the prompt is empty", hint="return at least one character from Task.prompt")
    return ids


def following_tokens(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message] | None, words: Prompt
) -> list[int]:
    """Tokens of what follows a path: text as it is; messages as the turns after the assistant's (which is closed)."""
    if isinstance(words, str):
        ids = continuation(tokenizer, words)
    else:
        if messages is None:
            raise EngineError(
                "chat messages cannot follow a prompt that is plain text",
                hint="return chat messages from Task.prompt too, or a string here",
            )
        said: list[Message] = [*messages, {"role": "assistant", "content": MARK}]
        whole = _render(tokenizer, [*said, *words], add_generation_prompt=True)
        _, found, after = whole.rpartition(MARK)
        if not found:
            raise EngineError("the chat template does not show the assistant's words", hint="use plain text prompts")
        ids = encode(tokenizer, after)
    if not ids:
        raise EngineError("the question is empty", hint="ask something")
    return ids


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], **options: Any) -> str:
    if not tokenizer.chat_template:
        raise EngineError("this model has no chat template", hint="return a string from Task.prompt")
    try:
        return str(tokenizer.apply_chat_template([dict(m) for m in messages], tokenize=False, **options))
    except Exception as error:  # a template is a program: it may raise anything
        raise EngineError(f"the chat template refused the messages: {error}") from error
