"""Builds the parts of a :class:`TransformersEngine`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.kv_budget.shared_kv_budget import SharedKVBudget
from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.cache.offload.arena_offloader import ArenaOffloader
from rksc_tot.cache.offload.open_store import open_store
from rksc_tot.cache.offload.store import OffloadStore
from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.core.errors import ConfigError, EngineError
from rksc_tot.core.sizes import AUTO
from rksc_tot.engine.kv.choose_compressor import compressor_for, measure_attention
from rksc_tot.engine.kv.free_memory import automatic_budget
from rksc_tot.engine.kv.offloading import Restorer
from rksc_tot.engine.kv.speculation import DraftCopies
from rksc_tot.engine.kv.tree_compressor import TreeCompressor
from rksc_tot.engine.model.capability_check import Capabilities, examine, probe
from rksc_tot.engine.model.forward import Forward
from rksc_tot.engine.model.info import bytes_per_token, check_weights_place
from rksc_tot.engine.model.process_tuning import keep_freed_memory
from rksc_tot.engine.scheduler.scheduler import Scheduler
from rksc_tot.engine.transformers_engine.settings import EngineSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class EngineParts:
    """The parts of an engine.

    Attributes
    ----------
    forward
        Runs forward passes of the model.
    capabilities
        The capabilities that the probe found.
    bytes_per_token
        KV bytes of one token.
    tree
        The prefix tree, which holds the KV of paths.
    scheduler
        Decides what the next forward pass computes.
    store
        The store of evicted KV; None: no offload.
    """

    forward: Forward
    capabilities: Capabilities
    bytes_per_token: int
    tree: PrefixTree
    scheduler: Scheduler
    store: OffloadStore | None


def build(model: PreTrainedModel, name: str, settings: EngineSettings) -> EngineParts:
    """Build the parts of an engine. The model is not changed.

    Raises
    ------
    UnsupportedModel
        If trees decode differently on this model than plain forward passes, or its weights are not on one device.
    ConfigError
        If a setting does not fit this model.
    """
    check_weights_place(model)
    if model.device.type == "cpu":
        keep_freed_memory()
    arena = Arena(1 << 62)
    forward, capabilities = probe(model, arena, packed=settings.pack)
    size = bytes_per_token(forward, arena)
    budget = automatic_budget(forward.device) if settings.kv_budget == AUTO else settings.kv_budget
    shared = budget if isinstance(budget, SharedKVBudget) else None
    arena.limit = _tokens(budget.most if isinstance(budget, SharedKVBudget) else budget, size, "a KV budget")
    if settings.eviction.heeds_attention:
        measure_attention(forward, f"eviction by {settings.eviction.name}", name)
    compressor = None if settings.compress is None else compressor_for(settings.compress, forward, name)
    store = open_store(settings.offload, settings.offload_budget, settings.offload_folder)
    if store is not None:
        _tokens(store.limit, size, "an offload budget")
        store.take()
    tree = PrefixTree(
        SlotPool(arena.limit, size, shared),
        settings.eviction,
        isolated=settings.lossy,
        compressor=compressor if isinstance(compressor, TreeCompressor) else None,
        offloader=None if store is None else ArenaOffloader(store, arena),
    )
    copies = None
    if compressor is not None and settings.lossless:
        copies = DraftCopies(settings.lossless, compressor, tree, arena, size)
    restorer = None if store is None else Restorer(store, tree, arena)
    scheduler = Scheduler(forward, tree, settings.max_batch_tokens, size, compressor, copies, restorer)
    return EngineParts(forward, capabilities, size, tree, scheduler, store)


def clear(parts: EngineParts, known: Capabilities) -> Capabilities:
    """Drop all KV that no handle needs. If the model has changed, drop all KV and probe the model again.

    Raises
    ------
    EngineError
        If requests still need KV of the old model, or the size of a token's KV has changed.
    UnsupportedModel
        See :func:`build`.
    """
    forward, tree, arena = parts.forward, parts.tree, parts.forward.arena
    tree.evictor.clear()
    if not forward.changed:
        return known
    if parts.scheduler.jobs:
        raise EngineError("the model has changed while a search runs", hint="let it end, then call engine.clear()")
    for segment in list(tree.segments()):
        tree.evictor.evict_subtree(segment)
        segment.kv.drop_offloaded()
    observed, arena.attention_stats = (
        arena.attention_stats,
        None,
    )  # drop the attention stats of the probe's passes
    try:
        forward.read_weights()
        capabilities = examine(forward)
        if bytes_per_token(forward, arena) != parts.bytes_per_token:
            raise EngineError("a token's KV has another size in the changed model", hint="make a new engine for it")
    except BaseException:
        forward.distrust_weights()
        raise
    finally:
        arena.attention_stats = observed
    return capabilities


def _tokens(budget: int, size: int, what: str) -> int:
    """Number of tokens of ``size`` bytes that a budget holds; at least one, else ConfigError."""
    if budget < size:
        raise ConfigError(
            f"{what} of {budget} bytes", hint=f"give {size} at least, for one token, and room for a search"
        )
    return budget // size
