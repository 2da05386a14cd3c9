"""Tokens of prompts, thoughts and questions, checked against the model's context and vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from rksc_tot.core.errors import ContextOverflow, EngineError
from rksc_tot.core.task import ChatOrText, Markers, Message, Prompt
from rksc_tot.engine.base import AppendedText, ThinkingFormat
from rksc_tot.engine.tokenization.chat_template import (
    Following,
    following,
    following_tokens,
    opens_reply,
    prompt_tokens,
    thinking_prompt,
)
from rksc_tot.engine.tokenization.label_trie import LabelTrie, Pieces, label_trie
from rksc_tot.engine.tokenization.text import TextTokenizer
from rksc_tot.engine.tokenization.thinking import block_markers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


TRIES = 1024  # size of the cache of label tries


class PathTokenizer:
    """A tokenizer for one model.

    Parameters
    ----------
    tokenizer
        The model's tokenizer.
    vocabulary
        Size of the model's vocabulary.
    context
        Most tokens of a path.

    Raises
    ------
    ContextOverflow
        By each method, if the path becomes longer than the context.
    EngineError
        By each method, if the tokenizer returns an id outside the vocabulary.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: int, context: int) -> None:
        self.tokenizer = TextTokenizer(tokenizer)
        self.vocabulary = vocabulary
        self.context = context
        self._pieces = Pieces(tokenizer, vocabulary)
        self._trie = lru_cache(TRIES)(self._label_trie)

    def form(self, prompt: Prompt) -> Prompt:
        """The form of a prompt that fits the model: a prompt in two forms is its text if there is no chat template."""
        return prompt.text if isinstance(prompt, ChatOrText) and not self.tokenizer.raw.chat_template else prompt

    def prompt(self, prompt: Prompt, thinking: ThinkingFormat | None = None) -> list[int]:
        """Tokens of a prompt; at least one token of the context is left free."""
        ids = prompt_tokens(self.tokenizer, prompt) if thinking is None else list(thinking.prompt)
        if len(ids) >= self.context:
            raise ContextOverflow(
                f"the prompt has {len(ids)} tokens, the model's context holds {self.context}",
                hint="shorten the prompt",
            )
        return self._known(ids)

    def thinking(self, prompt: Prompt, named: Markers | None) -> ThinkingFormat:
        """How thinking blocks are written after a prompt. Raises ConfigError if no markers are named and none are found."""
        markers = block_markers(self.tokenizer, named)
        base, opened = thinking_prompt(self.tokenizer, self.form(prompt), markers)

        def appended(*texts: str) -> AppendedText:
            ids = [token for text in texts for token in self.tokenizer.template_text(text)]
            return AppendedText("".join(texts), tuple(self._known(ids)))

        begun = not isinstance(prompt, str) and not opens_reply(prompt)  # the reply has its header already
        again = markers.closer + markers.turn + markers.opening if markers.turn else markers.opening
        return ThinkingFormat(
            markers.opener,
            markers.closer,
            markers.source,
            bool(opened),
            tuple(base),
            opening=appended(*(opened or [again if begun else markers.opening])),
            reopening=appended(again),
            closing=appended(markers.lead + markers.closer + markers.reply),
            reply=appended(markers.reply),
            header=appended("" if begun else markers.header),
        )

    def continuation(self, messages: Sequence[Message] | None, words: Prompt, length: int) -> list[int]:
        """Tokens of a text or of chat messages that continue a path; arguments as in :meth:`question`. A text may be empty."""
        if not isinstance(words, str):
            return self.question(messages, words, length)
        ids = self.tokenizer.continuation(words)
        self.check_room(length, len(ids))
        return self._known(ids)

    def check_room(self, length: int, more: int) -> None:
        """Raise ContextOverflow if the context has no room for ``more`` tokens after a path of ``length`` tokens."""
        if length + more > self.context:
            raise ContextOverflow(
                f"{length} + {more} tokens exceed the context of {self.context}", hint="propose shorter thoughts"
            )

    def question(self, messages: Sequence[Message] | None, words: Prompt, length: int) -> list[int]:
        """Tokens of a question after a path of ``length`` tokens whose prompt was ``messages`` (None: plain text)."""
        ids = following_tokens(self.tokenizer, messages, words)
        self._fits(length, len(ids))
        return self._known(ids)

    def labels(
        self, messages: Sequence[Message] | None, words: Prompt, labels: tuple[str, ...], length: int
    ) -> LabelTrie:
        """The label trie of a question, with the tokens of the question; arguments as in :meth:`question`."""
        trie = self._trie(following(self.tokenizer, messages, words), labels)
        self._fits(length, len(trie.question) + len(trie.nodes[-1]))
        return trie

    def _fits(self, length: int, more: int) -> None:
        if length + more > self.context:
            raise ContextOverflow(
                f"a path of {length} tokens and a question of {more} exceed the context of {self.context}",
                hint="shorten the question or the thoughts",
            )

    def _label_trie(self, question: Following, labels: tuple[str, ...]) -> LabelTrie:
        text = question.text

        def tokens(asked: str) -> list[int]:
            return self._known(question.tokens(self.tokenizer, asked.removeprefix(text)))

        return label_trie(tokens, text, labels, self._pieces, self.tokenizer.raw.unk_token_id)

    def _known(self, ids: list[int]) -> list[int]:
        if ids and max(ids) >= self.vocabulary:
            raise EngineError(
                f"the tokenizer gave id {max(ids)}, the model knows {self.vocabulary}",
                hint="load the tokenizer that belongs to the model",
            )
        return ids
