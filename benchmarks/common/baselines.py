"""The baselines of `paper`: branches and their verification in plain transformers, with and without shared prefixes.

All baselines are batched, use sdpa, and compute only logits that are read. They draw with the private random numbers of the
engine, so that texts can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from rksc_tot.engine.base import Sampling
from rksc_tot.engine.jobs.random_streams import Streams
from rksc_tot.engine.jobs.sampler import Draws, Logits, sample
from rksc_tot.engine.model.hf_compat import cache_keyword
from rksc_tot.engine.tokenization.label_trie import Pieces, label_trie
from rksc_tot.engine.tokenization.text import TextTokenizer

SAMPLING = Sampling(temperature=1.0)
LABELS = ("yes", "no")


@dataclass(frozen=True, slots=True)
class Work:
    """A prompt, a branch of ``new`` tokens for each stream, and a question after every branch."""

    prompt: str
    question: str
    streams: tuple[int, ...]
    new: int


def label_tokens(tokenizer: PreTrainedTokenizerBase, question: str) -> tuple[list[int], ...]:
    """For each of :data:`LABELS`, the single tokens that spell it after a question."""
    tokens, pieces = TextTokenizer(tokenizer).continuation, Pieces(tokenizer, len(tokenizer))
    trie = label_trie(tokens, question, LABELS, pieces, tokenizer.unk_token_id)
    if not trie.flat:
        raise ValueError(f"this tokenizer spells {' or '.join(LABELS)} with more than one token")
    return tuple(map(list, trie.first))


class Replies(NamedTuple):
    """The tokens of every branch, and the probability of the first label after its question."""

    texts: list[str]
    verdicts: list[float]


@dataclass(frozen=True, slots=True)
class Plain:
    """A model with stock attention, and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @torch.inference_mode()
    def recompute(self, work: Work) -> Replies:
        """(a) Without sharing: the prompt is computed for every branch, and prompt and branch again for every question."""
        prompt = self._rows(work.prompt, len(work.streams))
        cache = self._cache()
        written = self._decode(work, cache, self._last_logits(prompt, cache))
        return self._replies(work, written, self._reread(work, prompt, written))

    @torch.inference_mode()
    def prefix_cache(self, work: Work) -> Replies:
        """(b1) The prompt is computed once for all branches; a question is a new prompt."""
        cache = self._cache()
        logits = self._last_logits(self._rows(work.prompt, 1), cache)
        written = self._decode(work, cache, logits)
        return self._replies(work, written, self._reread(work, self._rows(work.prompt, len(work.streams)), written))

    @torch.inference_mode()
    def continued_cache(self, work: Work) -> Replies:
        """(b2) The prompt is computed once, and the question continues the cache of the branches."""
        cache = self._cache()
        logits = self._last_logits(self._rows(work.prompt, 1), cache)
        written = self._decode(work, cache, logits)
        unread = torch.cat(
            [written[:, -1:], self._rows(work.question, len(written))], 1
        )  # the cache lacks the last token
        return self._replies(work, written, self._last_logits(unread, cache))

    def _decode(self, work: Work, cache: DynamicCache, logits: Tensor) -> Tensor:
        """Sample tokens ``[B, new]``; ``logits [B or 1, V]`` are those after the prompt."""
        streams = Streams(work.streams)
        branches = range(len(work.streams))
        if len(logits) < len(branches):
            cache.batch_repeat_interleave(len(branches))
        written: list[Tensor] = []
        for step in range(work.new):
            rows = [min(n, len(logits) - 1) for n in branches]
            [tokens], _ = sample(Logits(logits), [Draws(rows, streams[step], SAMPLING)])
            written.append(torch.tensor(tokens, device=logits.device)[:, None])
            if step < work.new - 1:
                logits = self._last_logits(written[-1], cache)
        return torch.cat(written, 1)

    def _reread(self, work: Work, prompt: Tensor, written: Tensor) -> Tensor:
        """Logits after prompt, branch and question, from the first token on."""
        return self._last_logits(torch.cat([prompt, written, self._rows(work.question, len(written))], 1), None)

    def _last_logits(self, ids: Tensor, cache: DynamicCache | None) -> Tensor:
        """Logits ``[B, V]`` after ``ids [B, T]``."""
        kept: dict[str, Any] = {cache_keyword(self.model): cache} if cache else {}
        output = self.model(input_ids=ids, use_cache=cache is not None, logits_to_keep=1, **kept)
        logits: Tensor = output.logits[:, -1]
        return logits

    def _cache(self) -> DynamicCache:
        return DynamicCache(config=self.model.config)

    def _rows(self, text: str, count: int) -> Tensor:
        """The same ids ``[count, T]`` for every branch."""
        return torch.tensor([TextTokenizer(self.tokenizer).encode(text)], device=self.model.device).repeat(count, 1)

    def _replies(self, work: Work, written: Tensor, logits: Tensor) -> Replies:
        probabilities = logits.double().softmax(-1)
        first, second = (probabilities[:, ids].sum(-1) for ids in label_tokens(self.tokenizer, work.question))
        texts = [TextTokenizer(self.tokenizer).decode(tokens) for tokens in written.tolist()]
        return Replies(texts, (first / (first + second)).tolist())


Condition = Callable[[Work], Replies]
