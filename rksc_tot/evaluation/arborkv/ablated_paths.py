"""Copies of paths without the KV of some tokens, isolated from all other paths."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from rksc_tot.cache.prefix_tree import Segment
from rksc_tot.core.errors import ConfigError
from rksc_tot.engine.transformers_engine.engine import TransformersEngine
from rksc_tot.engine.transformers_engine.handle import KVHandle


@asynccontextmanager
async def copies_without(
    engine: TransformersEngine, wanted: Sequence[tuple[KVHandle, range]]
) -> AsyncIterator[list[KVHandle]]:
    """Copy paths, each without the KV of a range of positions. The copies are dropped when the block ends.

    The KV of a copy was computed on the full path. Tokens after a copy are computed on the copy.

    Raises
    ------
    ConfigError
        If a path is not completely resident, or the engine compressed a copy during the block.
    CacheError
        If the KV budget has no room for the copies.
    """
    copies: list[KVHandle] = []
    sizes: list[int] = []

    def make() -> None:
        for handle, gap in wanted:
            place = _copy(engine, handle.segment, gap)
            copies.append(
                KVHandle(engine.engine_thread, handle.length, handle.messages, handle.prompt_end, place=place)
            )
            sizes.append(len(place.kv.slots))

    def forget() -> None:
        for copy in copies:
            engine.cache.discard(copy.segment, 0)

    try:
        await asyncio.wrap_future(engine.engine_thread.submit(make))
        yield copies
        if [len(copy.segment.kv.slots) for copy in copies] != sizes:
            raise _too_small()
    finally:
        for copy in copies:
            engine.release(copy)
        await asyncio.wrap_future(engine.engine_thread.submit(forget))


def _copy(engine: TransformersEngine, tip: Segment, gap: range) -> Segment:
    """An isolated copy of the path to ``tip`` without the KV of the positions in ``gap``."""
    tree, arena = engine.cache, engine.forward.arena
    lineage = tip.lineage()
    if not all(segment.whole for segment in lineage):
        raise _too_small()
    tokens = [token for segment in lineage for token in segment.tokens]
    tree.residency.pin(tip)  # so that making room does not evict it
    try:
        slots = tree.room.allocate(len(tokens))
    finally:
        tree.residency.unpin(tip)
    place = tree.walk(tree.private_root(irreplaceable=True), tokens)
    tree.residency.store(place, slots)
    tree.hold(place)
    arena.reserve(tree.residency.pool.extent)
    arena.copy([slot for segment in lineage for slot in segment.kv.slots], slots)
    tree.residency.compress(place, [n for n in range(len(tokens)) if n not in gap])
    return place


def _too_small() -> ConfigError:
    return ConfigError("the KV of a search does not fit the KV budget", hint="raise the KV budget")
