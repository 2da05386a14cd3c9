"""The engine on a transformers causal LM."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from rksc_tot.cache.prefix_tree import Segment
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.task import Prompt
from rksc_tot.engine.base import (
    Account,
    Completion,
    GenerateRequest,
    LabelRequest,
    LabelScores,
    PromptReuseVerdict,
    Usage,
    check_layers,
    check_prompt_kv,
)
from rksc_tot.engine.jobs.generation.generation import Generation
from rksc_tot.engine.jobs.label_question import Distribution, Labelling
from rksc_tot.engine.model.info import eos_ids, vocabulary_size
from rksc_tot.engine.scheduler.engine_thread import EngineThread
from rksc_tot.engine.tokenization.path_tokens import PathTokenizer
from rksc_tot.engine.transformers_engine.build import build, clear
from rksc_tot.engine.transformers_engine.full_kv import AuditPaths, against_full, compared, rehydrate
from rksc_tot.engine.transformers_engine.handle import KVHandle, check_handles
from rksc_tot.engine.transformers_engine.prompt_reuse import PromptReuser, reuse
from rksc_tot.engine.transformers_engine.settings import EngineKeywords, EngineSettings
from rksc_tot.policies.asks import sigma
from rksc_tot.policies.compression.base import PathPolicy

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from rksc_tot.policies.asks import PromptReuse


_log = logging.getLogger("rksc_tot")


class TransformersEngine:
    """Tree decoding on one model. Safe to use from several searches, event loops and threads at once.

    An engine works only in the process that made it. A forked process must make its own.

    Parameters
    ----------
    model, tokenizer
        A causal LM in eval mode and its tokenizer. Use :func:`rksc_tot.load_engine` to load them by name.
    name
        Name of the model in reports.
    settings, **changes
        The settings: an :class:`~rksc_tot.engine.transformers_engine.settings.EngineSettings`, single fields of it
        as keyword arguments, or both.

    Attributes
    ----------
    compression
        The compression policy; None: all KV is kept.
    capabilities
        The capabilities that the probe found.
    bytes_per_token
        KV bytes of one token.
    cache, forward, scheduler, engine_thread, offload_store
        Parts for tests and benchmarks: the prefix tree, the forward pass, the scheduler, the engine thread that owns these
        three, and the store of evicted KV.

    Raises
    ------
    UnsupportedModel
        If trees decode differently on this model than plain forward passes.
    ConfigError
        If a setting is out of range or does not fit this model.
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
        settings = EngineSettings.of(settings, changes)
        self.model = model
        self.tokenizer = tokenizer
        self.name = name or str(model.config.name_or_path)
        self.compression = settings.compress
        self._parts = parts = build(model, self.name, settings)
        self.capabilities = parts.capabilities
        self.bytes_per_token = parts.bytes_per_token
        self.cache = parts.tree
        self.forward = parts.forward
        self.offload_store = parts.store
        self.scheduler = parts.scheduler
        self.engine_thread = EngineThread(parts.scheduler)
        self._settings = settings
        self._reuser = PromptReuser(parts.scheduler)
        self._paths = PathTokenizer(tokenizer, vocabulary_size(model.get_input_embeddings()), self.capabilities.context)
        self._eos = eos_ids(model, tokenizer)

    @property
    def numerics(self) -> Mapping[str, Any]:
        """The facts that results depend on besides the seed."""
        import torch
        import transformers

        settings, forward, store = self._settings, self.forward, self.offload_store
        return MappingProxyType(
            {
                "model": self.name,
                "dtype": str(forward.dtype).removeprefix("torch."),
                "device": str(forward.device),
                "route": forward.route,
                "linear": forward.linear,
                "batch_invariant": self.capabilities.batch_invariant,
                "compression": None if settings.compress is None else settings.compress.describe(),
                "lossless": settings.lossless and settings.lossless.model_dump(),
                "offload": None if store is None else store.name,
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            }
        )

    @property
    def layers(self) -> int:
        """Decoder layers for early exit and traces of label requests; 0 if the model allows neither."""
        return self.capabilities.layers

    @property
    def usage(self) -> Usage:
        """Totals of this engine (see :class:`~rksc_tot.engine.base.Usage`)."""
        scheduler, size, pool = self.scheduler, self.bytes_per_token, self.cache.residency.pool
        return Usage(
            scheduler.passes, scheduler.rows, scheduler.most, pool.used * size, pool.limit * size, len(scheduler.jobs)
        )

    # -- paths -------------------------------------------------------------------------------------------------------

    def open(self, prompt: Prompt, account: Account) -> KVHandle:
        """A handle for a prompt (see :class:`~rksc_tot.engine.base.Engine`); CacheError if the KV budget cannot hold it."""
        self.engine_thread.check_usable()
        self.forward.check_weights(thoroughly=True)
        ids, tree = self._paths.prompt(prompt), self.cache
        check_prompt_kv(len(ids), self.bytes_per_token, account, tree.residency.pool.limit)
        if isinstance(self.compression, PathPolicy):
            self.compression.check_prompt(len(ids))
        messages = None if isinstance(prompt, str) else tuple(prompt)
        handle = KVHandle(self.engine_thread, len(ids), messages, len(ids), prompt=True)

        def place() -> None:
            handle.place = tree.walk(tree.private_root() if tree.isolated else tree.origin, ids)
            tree.hold(handle.place, prompt=True)

        self.engine_thread.later(place)
        return handle

    def extend(self, handle: KVHandle, text: str) -> KVHandle:
        """A handle for the path continued by ``text``."""
        self._check(handle)
        ids = self._paths.thought(text, handle.length)
        longer = KVHandle(self.engine_thread, handle.length + len(ids), handle.messages, handle.prompt_end)

        def place() -> None:
            longer.place = self.cache.walk(handle.segment, ids)
            self.cache.hold(longer.place)

        self.engine_thread.later(place)
        return longer

    def rate(self, handle: KVHandle, score: float, depth: int) -> None:
        """Rate a path for eviction (see :class:`~rksc_tot.engine.base.Engine`); ConfigError unless that is a finite number."""
        self._check(handle)
        if not math.isfinite(score) or depth < 0:
            raise ConfigError(
                f"a path of {depth} thoughts is rated {score}", hint="give a finite score, a depth from 0 on"
            )

        def rate() -> None:
            eviction, stats = self.cache.residency.eviction, self.forward.arena.attention_stats
            attention = 0.0 if stats is None else stats.share(handle.segment.kv.slots)
            try:
                eviction.rate(handle.segment, eviction.policy.importance(score, depth, attention), score)
            except Exception as error:  # of a user's policy; no caller waits for the result
                _log.warning("eviction by %s failed: %s: %s", eviction.policy.name, type(error).__name__, error)

        self.engine_thread.later(rate)

    def release(self, handle: KVHandle) -> None:
        """Release a handle; a second release is an error. In a forked process nothing happens."""
        if self.engine_thread.forked:
            return
        self._check(handle)
        handle.released = True
        self.engine_thread.later(lambda: self.cache.drop(handle.segment, prompt=handle.prompt))

    # -- requests ----------------------------------------------------------------------------------------------------

    async def generate(self, requests: Sequence[GenerateRequest], account: Account) -> list[list[Completion]]:
        """Completions of each request, ordered by their first branch."""
        self._check(*(request.handle for request in requests))
        suffixes = [
            [] if r.suffix is None else self._paths.question(r.handle.messages, r.suffix, r.handle.length)
            for r in requests
        ]
        account.ledger.book_visit(sum(request.handle.length for request in requests))

        def make() -> list[Generation]:
            tree = self.cache
            return [
                Generation(
                    tree, tree.walk(r.handle.segment, suffix), r, account, r.handle.prompt_end, self._paths.tokenizer,
                    self._eos, self.capabilities.context, r.handle.length if suffix else None,
                )
                for r, suffix in zip(requests, suffixes, strict=True)
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
                    trie, self.forward.depth,
                )
                for r, trie in zip(requests, tries, strict=True)
            ]  # fmt: skip

        return [job.result for job in await self.engine_thread.run(make)]

    def similarity(self, handle: KVHandle, others: Sequence[KVHandle], alpha: float) -> list[float | None]:
        """σ of :func:`~rksc_tot.policies.asks.sigma` between thoughts generated with ``states``, None for thoughts without them.

        The states are those of the last row of a thought, which predicts its end.
        """
        self._check(handle, *others)
        states = handle.states
        return [
            None if states is None or other.states is None else sigma(states, other.states, alpha) for other in others
        ]

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

    # -- state -------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Drop all KV that no handle needs. If the model has changed, drop all KV and read the model again; no search may run."""
        self.engine_thread.check_usable()
        with self.engine_thread.books():
            self.capabilities = clear(self._parts, self.capabilities)

    def check_integrity(self) -> None:
        """Raise CacheError if the KV cache is inconsistent. For tests."""
        with self.engine_thread.books():
            self.cache.check_integrity()

    def close(self) -> None:
        """Stop and free all KV. In a forked process nothing happens."""
        if not self.engine_thread.closed and not self.engine_thread.forked:
            self.engine_thread.close()
            with self.engine_thread.books():
                self.forward.arena.clear()
                if self.offload_store is not None:
                    self.offload_store.close()

    def __enter__(self) -> TransformersEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _adopt(self, segment: Segment | None, request: GenerateRequest, job: Generation) -> KVHandle | None:
        """A handle for the segment of a completion. The job already holds the segment."""
        if segment is None:
            return None
        states = job.completions.states.get(segment) if request.states else None
        parent = request.handle
        return KVHandle(
            self.engine_thread, segment.end, parent.messages, parent.prompt_end, place=segment, states=states
        )

    def _check(self, *handles: Any) -> None:
        self.engine_thread.check_usable()
        self.forward.check_weights()
        check_handles(handles, self.engine_thread)
