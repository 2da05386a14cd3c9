"""Records after every pass of an engine the bytes of resident KV and of the arena's tensors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rksc_tot.engine.attention.plan import Plan
from rksc_tot.engine.model.layer_hooks import LayerHook
from rksc_tot.engine.transformers_engine.engine import TransformersEngine


class EngineRecorder:
    """Figures of an engine from the construction of this object on.

    ``passes``: forward passes. ``full_passes``: passes with rows that are not draft rows. ``held``: most bytes of resident KV,
    counted segment by segment after a pass. ``allocated``: most bytes of the arena's tensors. ``growing``: most bytes of old and
    new tensors together while the arena grew. ``overruns``: passes after which held or allocated bytes exceeded the budget.
    """

    def __init__(self, engine: TransformersEngine) -> None:
        self.engine = engine
        self.budget = engine.cache.residency.pool.limit * engine.bytes_per_token
        self.passes = self.full_passes = self.overruns = self.held = self.allocated = self.growing = 0
        self._run, self._reserve = engine.forward.run, engine.forward.arena.reserve
        engine.forward.run = self._recorded_run  # type: ignore[method-assign]
        engine.forward.arena.reserve = self._reserved  # type: ignore[method-assign]

    def _recorded_run(self, plan: Plan, extent: int, hooks: Sequence[LayerHook] = ()) -> Tensor:
        logits = self._run(plan, extent, hooks)
        cache = self.engine.cache
        held = sum(len(segment.kv.slots) for segment in cache.segments()) * self.engine.bytes_per_token
        allocated = self._tensors()
        self.passes += 1
        self.full_passes += any(block.lineage[0].parent is cache.origin for block in plan.blocks)
        self.held, self.allocated = max(self.held, held), max(self.allocated, allocated)
        self.overruns += max(held, allocated) > self.budget
        return logits

    def _reserved(self, extent: int) -> None:
        before = self._tensors()
        self._reserve(extent)
        if (after := self._tensors()) != before:
            self.growing = max(self.growing, before + after)

    def _tensors(self) -> int:
        arena = self.engine.forward.arena
        return sum(t.untyped_storage().nbytes() for t in (*arena.keys.values(), *arena.values.values()))
