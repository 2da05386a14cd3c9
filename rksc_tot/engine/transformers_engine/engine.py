"""The engine over a transformers causal LM."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.offload.store import OffloadStore, open_store
from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.cache.slot_pool import SlotPool
from rksc_tot.core.errors import CacheError, ConfigError, ContextOverflow, EngineError
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.core.sizes import OFFLOAD_BUDGET, kv_bytes
from rksc_tot.core.task import Prompt
from rksc_tot.engine.base import (
    Account,
    Completion,
    GenerateRequest,
    LabelRequest,
    LabelScores,
    PromptReuseVerdict,
    Usage,
)
from rksc_tot.engine.jobs.generation import Generation
from rksc_tot.engine.jobs.label import Distribution, Labelling
from rksc_tot.engine.kv.compression import compressor, see_attention
from rksc_tot.engine.kv.offloading import Offloader
from rksc_tot.engine.kv.speculation import Drafter
from rksc_tot.engine.model.forward import Forward
from rksc_tot.engine.model.info import bytes_per_token, eos_ids, vocabulary_size
from rksc_tot.engine.model.probe import probe
from rksc_tot.engine.model.process_tuning import keep_freed_memory
from rksc_tot.engine.scheduler.engine_thread import CLOSED, EngineThread
from rksc_tot.engine.scheduler.scheduler import Scheduler
from rksc_tot.engine.tokenization.chat import following_tokens, prompt_tokens
from rksc_tot.engine.tokenization.text import continuation, label_tokens
from rksc_tot.engine.transformers_engine.full_kv import AuditPaths, against_full, compared, rehydrate
from rksc_tot.engine.transformers_engine.handle import KVHandle
from rksc_tot.policies.compression.base import CompressionPolicy, PathPolicy, compression_policy
from rksc_tot.policies.compression.lossless import Lossless, lossless_settings
from rksc_tot.policies.eviction.base import EvictionPolicy, eviction_policy

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from rksc_tot.engine.transformers_engine.prompt_reuse import PromptReuser
    from rksc_tot.policies.asks import PromptReuse


_log = logging.getLogger("rksc_tot")


class TransformersEngine:
    """Tree decoding on one model. Safe to use from several searches, event loops and threads at once.

    Parameters
    ----------
    model, tokenizer
        A causal LM in eval mode and its tokenizer. Use :func:`rksc_tot.load_engine` to load them by name.
    kv_budget
        Bytes of KV that may be resident, prompt included; or a text such as ``64MiB``.
    eviction
        What goes first when room is needed: a policy or its name, such as ``rsbcm`` or ``lru``.
    compress
        What is kept of a path or thought that may not keep all its KV: a policy or its name, such as ``random_attention``. What
        is computed upon the rest is not exact, and says so. None: everything is kept.
    lossless
        Whether what is written upon the rest is only a draft, verified upon everything, so that results are exact.
    offload
        Where KV goes that leaves the arena and may be wanted again: ``cpu`` (host memory), ``disk`` (a file), or a store of
        this engine's own, which is closed with it. It is copied back where that was measured to be cheaper than computing it.
    offload_budget, offload_folder
        Bytes it may hold there; the folder of the file.
    max_batch_tokens
        Most rows of one forward pass; longer prompts are prefilled in chunks.
    pack
        Whether linear layers are computed by oneDNN, see :mod:`rksc_tot.engine.model.onednn_linear`. Weights are read when the engine is
        made then. None: where it is worth it.

    Raises
    ------
    UnsupportedModel
        If trees decoded on this model do not equal plain forward passes.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str = "",
        kv_budget: int | str = 1 << 30,
        eviction: str | EvictionPolicy = "rsbcm",
        compress: str | CompressionPolicy | None = None,
        lossless: bool | Lossless = False,
        offload: str | OffloadStore | None = None,
        offload_budget: int | str = OFFLOAD_BUDGET,
        offload_folder: str | Path | None = None,
        max_batch_tokens: int = 2048,
        pack: bool | None = None,
    ) -> None:
        kv_budget, policy = kv_bytes(kv_budget, "kv_budget"), eviction_policy(eviction)
        most: object = max_batch_tokens
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise ConfigError(f"max_batch_tokens is {shown(most)}", hint="use a whole number, at least 1")
        drafts = lossless_settings(lossless)
        self.tokenizer = tokenizer
        self.name = name or str(model.config._name_or_path)
        if model.device.type == "cpu":
            keep_freed_memory()
        arena = Arena(1 << 62)
        forward, self.capabilities = probe(model, arena, packed=pack)
        with ExitStack() as refused:
            refused.callback(forward.give_back)
            if policy.heeds_attention:
                see_attention(forward, f"eviction by {policy.name}", self.name)
            per_token = bytes_per_token(forward, arena)
            limit = kv_budget // per_token
            if limit < 1:
                raise ConfigError(
                    f"a KV budget of {kv_budget} bytes", hint=f"one token of this model takes {per_token} bytes"
                )
            arena.limit = limit
            self._vocabulary = vocabulary_size(model.get_input_embeddings())
            self._eos = eos_ids(model, tokenizer)
            tree = PrefixTree(SlotPool(limit, per_token), policy)
            self.compression = compression_policy(compress)
            """What is kept of paths and thoughts; None: everything."""
            keeping = None if self.compression is None else compressor(self.compression, tree, forward, self.name)
            self._scheduler = Scheduler(forward, tree, max_batch_tokens, per_token, keeping)
            if drafts is not None:
                if keeping is None:
                    raise ConfigError(
                        "lossless drafts need a compression policy", hint="name one, or leave lossless out"
                    )
                self._scheduler.drafter = Drafter(drafts, keeping, tree, arena, self._scheduler.limit)
            if (store := open_store(offload, offload_budget, offload_folder)) is not None:
                if store.limit < per_token:
                    raise ConfigError(
                        f"an offload budget of {store.limit} bytes",
                        hint=f"one token of this model takes {per_token} bytes",
                    )
                store.take()
                self._scheduler.offloader = Offloader(store, tree, arena)
            tree.isolated = self._scheduler.lossy
            refused.pop_all()
        self.bytes_per_token = per_token
        """KV bytes of one token."""
        self.engine_thread = EngineThread(self._scheduler)
        """The thread that has the books."""
        self._labels: dict[tuple[str, ...], list[list[int]]] = {}
        self._phrasings: PromptReuser | None = None  # made when first asked for

    # -- the contract (engine/base.py) -------------------------------------------------------------------------------

    @property
    def numerics(self) -> Mapping[str, Any]:
        """What results depend on besides the seed."""
        import torch
        import transformers

        forward, drafter, offloader = self._scheduler.forward, self._scheduler.drafter, self._scheduler.offloader
        return MappingProxyType(
            {
                "model": self.name,
                "dtype": str(forward.dtype).removeprefix("torch."),
                "device": str(forward.device),
                "route": forward.route,
                "linear": "packed" if forward.packed else "stock",
                "batch_invariant": self.capabilities.batch_invariant,
                "compression": None if self.compression is None else self.compression.told(),
                "lossless": False if drafter is None else drafter.settings.model_dump(),
                "offload": None if offloader is None else offloader.store.name,
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            }
        )

    @property
    def layers(self) -> int:
        """Decoder layers a label request may exit from or trace; 0 if the model cannot be looked at between them."""
        return self.capabilities.layers

    @property
    def usage(self) -> Usage:
        """What was done and is held (see :class:`~rksc_tot.engine.base.Usage`)."""
        scheduler, size = self._scheduler, self.bytes_per_token
        pool = scheduler.tree.pool
        return Usage(
            scheduler.passes, scheduler.rows, scheduler.most, pool.used * size, pool.limit * size, len(scheduler.jobs)
        )

    def open(self, prompt: Prompt, account: Account) -> KVHandle:
        """A handle for a prompt (see :class:`~rksc_tot.engine.base.Engine`); CacheError if the KV budget cannot hold it."""
        self._check_open()
        ids = prompt_tokens(self.tokenizer, prompt)
        if len(ids) >= self.capabilities.context:
            raise ContextOverflow(
                f"the prompt has {len(ids)} tokens, the model's context holds {self.capabilities.context}",
                hint="shorten the prompt",
            )
        self._check_ids(ids)
        tree, size = self._scheduler.tree, self.bytes_per_token
        if len(ids) > tree.pool.limit:
            raise CacheError(
                f"the prompt's {len(ids)} tokens take {len(ids) * size} bytes of KV, the budget holds "
                f"{tree.pool.limit * size}",
                hint="raise the KV budget, and leave room for the thoughts",
            )
        if account.kv_bytes is not None and len(ids) * size > account.kv_bytes:
            raise CacheError(
                f"the prompt's {len(ids)} tokens take {len(ids) * size} bytes of KV, the search may hold {account.kv_bytes}",
                hint="raise its budget of KV bytes, and leave room for the thoughts",
            )
        if isinstance(self.compression, PathPolicy):
            self.compression.check_prompt(len(ids))
        messages = None if isinstance(prompt, str) else tuple(prompt)
        handle = KVHandle(self, len(ids), messages, len(ids), prompt=True)

        def place() -> None:
            handle.place = tree.walk(tree.private_root() if tree.isolated else tree.origin, ids)
            tree.hold(handle.place, prompt=True)

        self.engine_thread.later(place)
        return handle

    def extend(self, handle: KVHandle, text: str) -> KVHandle:
        """A handle for the path continued by ``text``."""
        self._check(handle)
        ids = continuation(self.tokenizer, text)
        if handle.length + len(ids) > self.capabilities.context:
            raise ContextOverflow(
                f"{handle.length} + {len(ids)} tokens exceed the context of {self.capabilities.context}",
                hint="propose shorter thoughts",
            )
        self._check_ids(ids)
        longer = KVHandle(self, handle.length + len(ids), handle.messages, handle.prompt_end)

        def place() -> None:
            longer.place = self._scheduler.tree.walk(handle.segment, ids)
            self._scheduler.tree.hold(longer.place)

        self.engine_thread.later(place)
        return longer

    async def generate(self, requests: Sequence[GenerateRequest], account: Account) -> list[list[Completion]]:
        """Completions of each request, ordered by their first branch."""
        self._check_open()
        for request in requests:
            self._check(request.handle)
        followers = [self._following(r.handle, r.suffix) if r.suffix is not None else [] for r in requests]
        for request in requests:
            account.ledger.context_tokens += request.handle.length

        def make() -> list[Generation]:
            return [
                Generation(
                    self._scheduler.tree, self._scheduler.tree.walk(r.handle.segment, after), r, account, self.tokenizer,
                    self._eos, self.capabilities.context, r.handle.length if after else None,
                ).after(r.handle.prompt_end)
                for r, after in zip(requests, followers, strict=True)
            ]  # fmt: skip

        jobs = await self.engine_thread.run(make)
        return [
            [c._replace(handle=self._adopt(c.handle, r, job)) for c in job.done]
            for r, job in zip(requests, jobs, strict=True)
        ]

    async def label(self, requests: Sequence[LabelRequest], account: Account) -> list[LabelScores | None]:
        """Label probabilities of each request, None where the deadline came first; nothing is left in the cache."""
        self._check_open()
        if not self.layers and any(r.exit is not None or r.trace for r in requests):
            raise ConfigError(
                f"{self.name} cannot be looked at between its layers: {self.forward.no_lens}",
                hint="ask without early exit",
            )
        followers = [self._following(r.handle, r.question) for r in requests]
        tokens = [self._label_tokens(r.labels) for r in requests]
        account.ledger.context_tokens += sum(r.handle.length for r in requests if not r.aside)

        def make() -> list[Labelling]:
            tree = self._scheduler.tree
            aside = AuditPaths(tree)
            return [
                Labelling(
                    tree, tree.walk(aside.path(r.handle) if r.aside else r.handle.segment, after),
                    account, r.handle.length, r, dict(zip(r.labels, ids, strict=True)), self.forward.depth,
                ).after(r.handle.prompt_end)
                for r, after, ids in zip(requests, followers, tokens, strict=True)
            ]  # fmt: skip

        return [job.result for job in await self.engine_thread.run(make)]

    def similarity(self, handle: KVHandle, others: Sequence[KVHandle], alpha: float) -> list[float | None]:
        """σ of :func:`~rksc_tot.policies.asks.sigma` between thoughts generated with ``states``, None where these are gone.

        The states compared are those of the last row computed for a thought: the one that predicts its end.
        """
        from rksc_tot.policies.asks import sigma

        for one in (handle, *others):
            self._check(one)
        states = handle.states
        return [
            None if states is None or other.states is None else sigma(states, other.states, alpha) for other in others
        ]

    async def open_variant(
        self, prompt: Prompt, reference: KVHandle, rule: PromptReuse, account: Account, key: int = 0
    ) -> tuple[KVHandle, PromptReuseVerdict]:
        """A handle for a prompt in other words, see :func:`rksc_tot.engine.transformers_engine.prompt_reuse.open_variant`."""
        from rksc_tot.engine.transformers_engine.prompt_reuse import PromptReuser, open_variant

        if self._phrasings is None:
            self._phrasings = PromptReuser(self._scheduler)
        return await open_variant(self, self._phrasings, prompt, reference, rule, account, key)

    async def divergence(
        self, pairs: Sequence[tuple[KVHandle, KVHandle]], account: Account
    ) -> list[tuple[float, bool] | None]:
        """How the next token differs after two paths: KL(first || second) in nats, and whether the likeliest is the same.

        None where the deadline came first.
        """
        handles = [handle for pair in pairs for handle in pair]
        for handle in handles:
            self._check(handle)

        def make() -> list[Distribution]:
            tree = self._scheduler.tree
            return [Distribution(tree, handle.segment, account).after(handle.prompt_end) for handle in handles]

        return compared([job.result for job in await self.engine_thread.run(make)])

    async def rehydrate(self, handles: Sequence[KVHandle], account: Account) -> list[bool]:
        """Make paths whole that a compression policy reduced, see :func:`rksc_tot.engine.transformers_engine.full_kv.rehydrate`."""
        for handle in handles:
            self._check(handle)
        return await rehydrate(self, handles, account)

    async def against_full(self, handles: Sequence[KVHandle], account: Account) -> list[tuple[float, bool] | None]:
        """What reductions do to the next token, see :func:`rksc_tot.engine.transformers_engine.full_kv.against_full`."""
        for handle in handles:
            self._check(handle)
        return await against_full(self, handles, account)

    def release(self, handle: KVHandle) -> None:
        """Give a handle back; releasing twice is an error."""
        self._check(handle)
        handle.released = True
        self.engine_thread.later(lambda: self._scheduler.tree.drop(handle.segment, prompt=handle.prompt))

    def rate(self, handle: KVHandle, score: float, depth: int) -> None:
        """Say what a path is worth (see :class:`~rksc_tot.engine.base.Engine`); ConfigError unless that is a finite number."""
        self._check(handle)
        if not math.isfinite(score) or depth < 0:
            raise ConfigError(
                f"a path of {depth} thoughts is rated {score}", hint="give a finite score, a depth from 0 on"
            )

        def rate() -> None:
            tree, observed = self._scheduler.tree, self.forward.arena.observed
            attention = 0.0 if observed is None else observed.share(handle.segment.slots)
            try:
                tree.rate(handle.segment, tree.policy.importance(score, depth, attention), score)
            except Exception as error:  # a plug-in's; nobody waits for an answer
                _log.warning("eviction by %s failed: %s: %s", tree.policy.name, type(error).__name__, error)

        self.engine_thread.later(rate)

    def clear(self) -> None:
        """Forget all KV that no handle needs, so that the next search starts cold."""
        self._check_open()
        with self.engine_thread.books():
            self._scheduler.tree.clear()

    def close(self) -> None:
        """Stop and free everything."""
        if not self.engine_thread.closed:
            self.engine_thread.close()
            with self.engine_thread.books():
                self._scheduler.forward.arena.clear()
                if self._scheduler.offloader is not None:
                    self._scheduler.offloader.store.close()
                self._scheduler.forward.give_back()  # the model is its owner's again

    def __enter__(self) -> TransformersEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- for tests and reports ---------------------------------------------------------------------------------------

    @property
    def model(self) -> PreTrainedModel:
        """The model, as it was given."""
        return self._scheduler.forward.model

    @property
    def forward(self) -> Forward:
        """How passes are run."""
        return self._scheduler.forward

    @property
    def cache(self) -> PrefixTree:
        """The books of the KV cache."""
        return self._scheduler.tree

    @property
    def offload_store(self) -> OffloadStore | None:
        """Where KV goes that leaves the arena, if anywhere."""
        return None if self._scheduler.offloader is None else self._scheduler.offloader.store

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV that are resident now."""
        with self.engine_thread.books():
            return self._scheduler.tree.pool.used * self._scheduler.forward.arena.bytes_per_row

    @property
    def forward_passes(self) -> int:
        """Passes run so far, for all searches."""
        return self._scheduler.passes

    def check_integrity(self) -> None:
        """Raise CacheError unless the cache's books balance."""
        with self.engine_thread.books():
            self._scheduler.tree.check_integrity()

    def settle(self) -> None:
        """See to it that every handle has its place."""
        with self.engine_thread.books():
            pass

    # -- inside ------------------------------------------------------------------------------------------------------

    def _adopt(self, segment: Segment | None, request: GenerateRequest, job: Generation) -> KVHandle | None:
        """A completion's segment is held already; wrap it."""
        if segment is None:
            return None
        states = job.states.get(segment) if request.states else None
        parent = request.handle
        return KVHandle(self, segment.end, parent.messages, parent.prompt_end, place=segment, states=states)

    def _following(self, handle: KVHandle, words: Prompt) -> list[int]:
        self._check(handle)
        ids = following_tokens(self.tokenizer, handle.messages, words)
        self._check_ids(ids)
        if handle.length + len(ids) > self.capabilities.context:
            raise ContextOverflow(
                f"a path of {handle.length} tokens and a question of {len(ids)} exceed the context of "
                f"{self.capabilities.context}",
                hint="shorten the question or the thoughts",
            )
        return ids

    def _label_tokens(self, labels: tuple[str, ...]) -> list[list[int]]:
        if labels not in self._labels:
            self._labels[labels] = label_tokens(self.tokenizer, labels)
        return self._labels[labels]

    def _check(self, handle: Any) -> None:
        self._check_open()
        if not isinstance(handle, KVHandle) or handle.owner is not self:
            raise EngineError(
                f"{handle!r} is not a handle of this engine", hint="use what open, extend and generate gave"
            )
        if handle.released:
            raise EngineError("this handle was released", hint="keep a node's handle until you are done with the node")

    def _check_ids(self, ids: Sequence[int]) -> None:
        if ids and max(ids) >= self._vocabulary:
            raise EngineError(
                f"the tokenizer gave id {max(ids)}, the model knows {self._vocabulary}",
                hint="load the tokenizer that belongs to the model",
            )

    def _check_open(self) -> None:
        if self.engine_thread.closed:
            raise EngineError(CLOSED, hint="load it again")
