"""Paths as they would be if the KV of some of their tokens had been let go of: copies that nothing else meets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from rksc_tot.cache.prefix_tree import Segment
from rksc_tot.core.errors import ConfigError
from rksc_tot.engine.transformers_engine.engine import TransformersEngine
from rksc_tot.engine.transformers_engine.handle import KVHandle


@asynccontextmanager
async def left_out(
    engine: TransformersEngine, wanted: Sequence[tuple[KVHandle, range]]
) -> AsyncIterator[list[KVHandle]]:
    """A handle for each (path, positions whose KV it is to lack); they, and what was written after them, go with the block.

    What is written after one is computed on what is left; what is left was computed on all of it.

    Raises
    ------
    ConfigError
        If a path is not resident as a whole, or copies had to be reduced while they were used: then they were not what they say.
    CacheError
        If there is no room for the copies.
    """
    copies: list[KVHandle] = []
    sizes: list[int] = []

    def make() -> None:
        for handle, gap in wanted:
            place = _copy(engine, handle.segment, gap)
            copies.append(
                KVHandle(engine.engine_thread, handle.length, handle.messages, handle.prompt_end, place=place)
            )
            sizes.append(len(place.slots))

    def forget() -> None:
        for copy in copies:
            engine.cache.discard(copy.segment, 0)

    try:
        await asyncio.wrap_future(engine.engine_thread.submit(make))
        yield copies
        if [len(copy.segment.slots) for copy in copies] != sizes:
            raise _too_small()
    finally:
        for copy in copies:
            engine.release(copy)
        await asyncio.wrap_future(engine.engine_thread.submit(forget))


def _copy(engine: TransformersEngine, tip: Segment, gap: range) -> Segment:
    """A path of its own with the KV of the path to ``tip`` but that of the positions of the gap, held."""
    tree, arena = engine.cache, engine.forward.arena
    lineage = tip.lineage()
    if not all(segment.whole for segment in lineage):
        raise _too_small()
    tokens = [token for segment in lineage for token in segment.tokens]
    tree.pin(tip)  # it must not go to make room for its copy
    try:
        tree.make_room(len(tokens))
    finally:
        tree.unpin(tip)
    slots = tree.pool.allocate(len(tokens))
    place = tree.walk(tree.private_root(irreplaceable=True), tokens)
    tree.store(place, slots)
    tree.hold(place)
    arena.reserve(tree.pool.extent)
    arena.copy([slot for segment in lineage for slot in segment.slots], slots)
    tree.reduce(place, [n for n in range(len(tokens)) if n not in gap])
    return place


def _too_small() -> ConfigError:
    return ConfigError("the KV of a whole search does not fit", hint="raise the KV budget")
