"""An engine of one model without its requests: handles, the thread that runs passes, and the KV of paths."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.task import Message
from rksc_tot.engine.base import Account, Usage, check_prompt_kv
from rksc_tot.engine.scheduler.engine_thread import EngineThread
from rksc_tot.engine.transformers_engine.build import build, clear
from rksc_tot.engine.transformers_engine.handle import KVHandle, check_handles
from rksc_tot.engine.transformers_engine.settings import EngineSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_log = logging.getLogger("rksc_tot")


class KVEngine:
    """The base of engines: one model, its prefix tree, and the thread that runs its passes.

    Safe to use from several searches, event loops and threads at once. An engine works only in the process that made it. A
    forked process must make its own.

    Parameters
    ----------
    model, tokenizer
        The model in eval mode and its tokenizer.
    name
        Name of the model in reports.
    settings
        The settings.

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
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str, settings: EngineSettings
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
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
        if (shared := parts.tree.residency.pool.shared) is not None:
            shared.join(
                parts.tree.residency.pool, self._give_up, lambda: any(job.running for job in parts.scheduler.jobs)
            )

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

    def _open(self, ids: Sequence[int], messages: Sequence[Message] | None, account: Account) -> KVHandle:
        """A handle for a prompt of these tokens; CacheError if the KV budget cannot hold it."""
        tree = self.cache
        check_prompt_kv(len(ids), self.bytes_per_token, account, tree.residency.pool.limit)
        handle = KVHandle(self.engine_thread, len(ids), messages, len(ids), prompt=True)

        def place() -> None:
            handle.place = tree.walk(tree.private_root() if tree.isolated else tree.origin, ids)
            tree.hold(handle.place, prompt=True)

        self.engine_thread.later(place)
        return handle

    def _extend(self, handle: KVHandle, ids: Sequence[int], messages: Sequence[Message] | None = None) -> KVHandle:
        """A handle for the path continued by these tokens. ``messages``: its chat messages, by default those of ``handle``."""
        end, start = handle.length + len(ids), handle.length
        turns = handle.messages if messages is None else messages
        longer = KVHandle(self.engine_thread, end, turns, handle.prompt_end, start=start)

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
            queue, stats = self.cache.eviction_queue, self.forward.arena.attention_stats
            attention = 0.0 if stats is None else stats.share(handle.segment.kv.slots)
            try:
                queue.rate(handle.segment, queue.policy.importance(score, depth, attention), score)
            except Exception as error:  # of a user's policy; no caller waits for the result
                _log.warning("eviction by %s failed: %s: %s", queue.policy.name, type(error).__name__, error)

        self.engine_thread.later(rate)

    def release(self, handle: KVHandle) -> None:
        """Release a handle; a second release is an error. In a forked process nothing happens."""
        if self.engine_thread.forked:
            return
        self._check(handle)
        handle.released = True
        self.engine_thread.later(lambda: self.cache.drop(handle.segment, prompt=handle.prompt))

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
            pool = self.cache.residency.pool
            if pool.shared is not None:
                pool.shared.leave(pool)
            with self.engine_thread.books():
                self.forward.arena.clear()
                if self.offload_store is not None:
                    self.offload_store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _give_up(self, rows: int) -> None:
        """Evict KV for another engine with the same budget."""
        with self.engine_thread.books():
            self.cache.evictor.give_up(rows)
            self.forward.arena.shrink(self.cache.residency.pool.trim())

    def _check(self, *handles: Any) -> None:
        self.engine_thread.check_usable()
        self.forward.check_weights()
        check_handles(handles, self.engine_thread)
