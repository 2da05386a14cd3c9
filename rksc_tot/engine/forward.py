"""One model, one forward pass over a plan: by the registered attention (fast) or with a 4D mask (portable)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rksc_tot.cache.arena import Arena
from rksc_tot.engine import compat
from rksc_tot.engine.attention import Tree
from rksc_tot.engine.plan import Plan
from rksc_tot.errors import UnsupportedModel

Route = Literal["fast", "mask"]


class Forward:
    """Runs plans through a model. ``stock``: the attention implementation the model was loaded with."""

    def __init__(self, model: PreTrainedModel, arena: Arena) -> None:
        self.model = model
        self.arena = arena
        self.stock = compat.stock_attention(model)
        self.route: Route = "mask"
        self._chooses_rows = compat.keeps_logits(model)
        self._cache_name = compat.cache_keyword(model)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        return self.model.dtype

    def take(self, route: Route) -> None:
        """Switch to a route."""
        wanted = compat.FAST if route == "fast" else self.stock
        if self.model.config._attn_implementation != wanted:
            self.model.set_attn_implementation(wanted)
        if self.model.config._attn_implementation != wanted:
            raise UnsupportedModel(f"its class does not take the attention function {wanted!r}")
        self.route = route

    @torch.inference_mode()
    def run(self, plan: Plan, extent: int) -> Tensor:
        """Logits ``[n, V]`` of the rows ``plan.logits_at``; the KV of all rows is stored."""
        self.arena.reserve(extent)
        chosen = {"logits_to_keep": plan.logits_at} if self._chooses_rows else {}
        if self.route == "fast":
            output = self.model(
                input_ids=plan.ids, position_ids=plan.positions, use_cache=False,
                tree=Tree(plan, self.arena), **chosen,
            )  # fmt: skip
        else:
            cache = compat.ArenaCache(self.arena, plan)
            mask = compat.masks_for(self.model, cache, self.dtype)
            output = self.model(
                input_ids=plan.ids, position_ids=plan.positions, attention_mask=mask, use_cache=True,
                **{self._cache_name: cache}, **chosen,
            )  # fmt: skip
        logits: Tensor = output.logits[0]
        return logits if self._chooses_rows else logits[plan.logits_at]

    @torch.inference_mode()
    def plain(self, ids: list[int]) -> Tensor:
        """Logits ``[len(ids), V]`` of a fresh, sequential pass without any cache: what everything is measured against."""
        route = self.route
        self.take("mask")
        try:
            logits: Tensor = self.model(input_ids=torch.tensor([ids], device=self.device), use_cache=False).logits[0]
        finally:
            self.take(route)
        return logits
