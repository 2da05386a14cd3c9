"""The engine on a transformers causal LM."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from rksc_tot.cache.prefix_tree import Segment
from rksc_tot.core.task import Markers, Prompt
from rksc_tot.engine.base import (
    Account,
    Completion,
    GenerateRequest,
    LabelRequest,
    LabelScores,
    PromptReuseVerdict,
    ThinkingFormat,
    check_layers,
)
from rksc_tot.engine.jobs.generation.generation import Generation
from rksc_tot.engine.jobs.label_question import Distribution, Labelling
from rksc_tot.engine.model.info import eos_ids, vocabulary_size
from rksc_tot.engine.tokenization.chat_template import turns_after
from rksc_tot.engine.tokenization.grammar import Grammars
from rksc_tot.engine.tokenization.path_tokens import PathTokenizer
from rksc_tot.engine.transformers_engine.full_kv import AuditPaths, against_full, compared, rehydrate
from rksc_tot.engine.transformers_engine.handle import KVHandle
from rksc_tot.engine.transformers_engine.kv_engine import KVEngine
from rksc_tot.engine.transformers_engine.prompt_reuse import PromptReuser, reuse
from rksc_tot.engine.transformers_engine.settings import EngineKeywords, EngineSettings
from rksc_tot.policies.asks import sigma
from rksc_tot.policies.compression.base import PathPolicy

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from rksc_tot.policies.asks import PromptReuse


class TransformersEngine(KVEngine):
    """Tree decoding on a causal LM.

    Parameters
    ----------
    model, tokenizer
        A causal LM in eval mode and its tokenizer. Use :func:`rksc_tot.load_engine` to load them by name.
    name
        Name of the model in reports.
    settings, **changes
        The settings: an :class:`~rksc_tot.engine.transformers_engine.settings.EngineSettings`, single fields of it
        as keyword arguments, or both.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str = "",
        settings: EngineSettings | None = None,
        **changes: Unpack[EngineKeywords],
    ) -> None:
        super().__init__(model, tokenizer, name or str(model.config.name_or_path), EngineSettings.of(settings, changes))
        self._reuser = PromptReuser(self.scheduler)
        self._paths = PathTokenizer(tokenizer, vocabulary_size(model.get_input_embeddings()), self.capabilities.context)
        self._eos = eos_ids(model, tokenizer)
        self._grammars = Grammars(self._paths.tokenizer, self._paths.vocabulary, self._eos)

    # -- paths -------------------------------------------------------------------------------------------------------

    def thinking_format(self, prompt: Prompt, markers: Markers | None) -> ThinkingFormat:
        """How thinking blocks are written after a prompt (see :class:`~rksc_tot.engine.base.ThinkingEngine`)."""
        return self._paths.thinking(prompt, markers)

    def open(self, prompt: Prompt, account: Account, thinking: ThinkingFormat | None = None) -> KVHandle:
        """A handle for a prompt (see :class:`~rksc_tot.engine.base.Engine`); CacheError if the KV budget cannot hold it."""
        self.engine_thread.check_usable()
        self.forward.check_weights(thoroughly=True)
        prompt = self._paths.form(prompt)
        ids = self._paths.prompt(prompt, thinking)
        if isinstance(self.compression, PathPolicy):
            self.compression.check_prompt(len(ids))
        return self._open(ids, None if isinstance(prompt, str) else tuple(prompt), account)

    def extend(self, handle: KVHandle, words: Prompt) -> KVHandle:
        """A handle for the path continued by a text, or by chat messages as the next turns."""
        self._check(handle)
        ids = self._paths.continuation(handle.messages, words, handle.length)
        return self._extend(handle, ids, turns_after(handle.messages, words))

    def append(self, handle: KVHandle, tokens: Sequence[int]) -> KVHandle:
        """A handle for the path continued by tokens."""
        self._check(handle)
        self._paths.check_room(handle.length, len(tokens))
        return self._extend(handle, tokens)

    # -- requests ----------------------------------------------------------------------------------------------------

    async def generate(self, requests: Sequence[GenerateRequest], account: Account) -> list[list[Completion]]:
        """Completions of each request, ordered by their first branch."""
        self._check(*(request.handle for request in requests))
        suffixes = [
            [] if r.suffix is None else self._paths.question(r.handle.messages, r.suffix, r.handle.length)
            for r in requests
        ]
        matchers = [
            None
            if r.constraint is None
            else await asyncio.to_thread(self._grammars.matcher, r.constraint, r.max_tokens)
            for r in requests
        ]
        account.ledger.book_visit(sum(request.handle.length for request in requests))

        def make() -> list[Generation]:
            tree = self.cache
            return [
                Generation(
                    tree, tree.walk(r.handle.segment, suffix), r, account, r.handle.prompt_end, self._paths.tokenizer,
                    self._eos, self.capabilities.context, None if r.suffix is None else r.handle.length, matcher,
                )
                for r, suffix, matcher in zip(requests, suffixes, matchers, strict=True)
            ]  # fmt: skip

        jobs = await self.engine_thread.run(make)
        return [
            [c._replace(handle=self._adopt(c.handle, r, job)) for c in job.completions.in_order()]
            for r, job in zip(requests, jobs, strict=True)
        ]

    async def label(self, requests: Sequence[LabelRequest], account: Account) -> list[LabelScores | None]:
        """Label probabilities of each request, None where the deadline came first. No KV of questions stays."""
        self._check(*(request.handle for request in requests))
        check_layers(requests, self.name, self.layers, self.forward.no_lens)
        tries = [self._paths.labels(r.handle.messages, r.question, r.labels, r.handle.length) for r in requests]
        for request, trie in zip(requests, tries, strict=True):
            if request.exit is not None or request.trace:
                trie.check_layers()
        account.ledger.book_visit(sum(r.handle.length for r in requests if not r.audit))

        def make() -> list[Labelling]:
            tree = self.cache
            copies = AuditPaths(tree)
            return [
                Labelling(
                    tree, copies.path(r.handle) if r.audit else r.handle.segment, account, r.handle.prompt_end, r,
                    trie, self.forward.depth, self._paths.tokenizer.decode,
                )
                for r, trie in zip(requests, tries, strict=True)
            ]  # fmt: skip

        return [job.result for job in await self.engine_thread.run(make)]

    def similarity(self, handle: KVHandle, others: Sequence[KVHandle], alpha: float) -> list[float | None]:
        """σ of :func:`~rksc_tot.policies.asks.sigma` between thoughts generated with ``states``, None for thoughts without them.

        The states are those of the last row of a thought, which predicts its end.
        """
        self._check(handle, *others)
        own, found = handle.states, [other.states for other in others]
        return [None if own is None or states is None else sigma(own, states, alpha) for states in found]

    def hidden_state(self, handle: KVHandle, layer: int) -> Sequence[float] | None:
        """The hidden state at the end of a thought (see :class:`~rksc_tot.engine.base.StatesEngine`)."""
        self._check(handle)
        if not 1 <= layer <= self.layers or handle.states is None:
            return None
        state: list[float] = handle.states[layer - 1].float().tolist()
        return state

    async def open_variant(
        self, prompt: Prompt, reference: KVHandle, rule: PromptReuse, account: Account, key: int = 0
    ) -> tuple[KVHandle, PromptReuseVerdict]:
        """A handle for a prompt variant (see :class:`~rksc_tot.engine.base.SharingEngine`).

        Raises
        ------
        UnsupportedModel
            If the model's positions are not rotary.
        EngineError
            If the handle is not of this engine, or the forward pass fails.
        """
        self._check(reference)
        exact = self.open(prompt, account)
        branch, decision = await reuse(self._reuser, self.engine_thread, exact, reference, rule, account, key)
        if branch is None:
            return exact, decision
        handle = KVHandle(self.engine_thread, branch.end, exact.messages, branch.end, place=branch)
        self.release(exact)
        return handle, decision

    async def divergence(
        self, pairs: Sequence[tuple[KVHandle, KVHandle]], account: Account
    ) -> list[tuple[float, bool] | None]:
        """Compare the next token after two paths (see :class:`~rksc_tot.engine.base.SharingEngine`)."""
        handles = [handle for pair in pairs for handle in pair]
        self._check(*handles)

        def make() -> list[Distribution]:
            return [Distribution(self.cache, handle.segment, account, handle.prompt_end) for handle in handles]

        return compared([job.result for job in await self.engine_thread.run(make)])

    async def rehydrate(self, handles: Sequence[KVHandle], account: Account) -> list[bool]:
        """Full KV for compressed paths (see :func:`~rksc_tot.engine.transformers_engine.full_kv.rehydrate`)."""
        self._check(*handles)
        return await rehydrate(self.engine_thread, handles, account)

    async def against_full(self, handles: Sequence[KVHandle], account: Account) -> list[tuple[float, bool] | None]:
        """Measure what compression changes (see :func:`~rksc_tot.engine.transformers_engine.full_kv.against_full`)."""
        self._check(*handles)
        return await against_full(self.engine_thread, handles, account)

    def _adopt(self, segment: Segment | None, request: GenerateRequest, job: Generation) -> KVHandle | None:
        """A handle for the segment of a completion. The job already holds the segment."""
        if segment is None:
            return None
        states = job.completions.states.get(segment) if request.states else None
        parent = request.handle
        return KVHandle(
            self.engine_thread, segment.end, parent.messages, parent.prompt_end, place=segment, states=states
        )
