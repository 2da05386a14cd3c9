"""One model, one forward pass over a plan: by the registered attention (fast) or with a 4D mask (portable)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rksc_tot.cache.arena import Arena
from rksc_tot.core.errors import UnsupportedModel
from rksc_tot.engine.attention.plan import Block, Plan
from rksc_tot.engine.attention.planner import build
from rksc_tot.engine.attention.tree_attention import Scratch, Tree
from rksc_tot.engine.attention.vector_padding import steady_rows
from rksc_tot.engine.model import hf_compat as compat
from rksc_tot.engine.model.layer_hooks import LayerHook, Watched
from rksc_tot.engine.model.lease import lease_of
from rksc_tot.engine.model.logit_lens import LogitLens
from rksc_tot.engine.model.onednn_linear import OneDNNWeights

Route = Literal["fast", "mask"]


class Forward:
    """Runs plans through a model, which nobody has changed when this is made (see :mod:`rksc_tot.engine.model.lease`). ``stock``: the
    attention implementation it was loaded with.
    """

    def __init__(self, model: PreTrainedModel, arena: Arena) -> None:
        self._loan = lease_of(model)
        self.model = model
        self.arena = arena
        self.stock = compat.stock_attention(model)
        self.route: Route = "mask"
        self._scratch = Scratch()
        self._packing: OneDNNWeights | None = None
        self.lens: LogitLens | None = None
        self.no_lens = "it was not tried"
        self._chooses_rows = compat.keeps_logits(model)
        self._cache_name = compat.cache_keyword(model)
        self.width: int = getattr(model.config.get_text_config(), "intermediate_size", None) or 0
        """Of the widest layer, 0 if the configuration does not tell."""

    def pack(self) -> None:
        """Compute linear layers by oneDNN from now on."""
        with self._loan.turn(None):
            self._packing = OneDNNWeights(self.model)

    @property
    def packed(self) -> bool:
        """Whether linear layers are computed by oneDNN."""
        return self._packing is not None

    @property
    def all_packed(self) -> bool:
        """Whether every product of a row with weights is computed by oneDNN."""
        return self._packing is not None and self._packing.complete

    def enter(self) -> None:
        """Change the model as passes need it."""
        self._set_attention(compat.FAST if self.route == "fast" else self.stock)
        if self._packing:
            self._packing.on()

    def leave(self) -> None:
        """Leave the model as it was found."""
        self._set_attention(self.stock)
        if self._packing:
            self._packing.off()

    def give_back(self) -> None:
        """Leave the model to its owner, until the next pass."""
        self._loan.give_back()

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.device

    @property
    def depth(self) -> int:
        """Decoder layers."""
        return int(self.model.config.get_text_config().num_hidden_layers)

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        return self.model.dtype

    def take(self, route: Route) -> None:
        """Switch to a route. Raises UnsupportedModel if the model's class does not take its attention."""
        self._loan.give_back()
        self.route = route
        with self._loan.turn(self):
            pass

    def _set_attention(self, wanted: str) -> None:
        if self.model.config._attn_implementation != wanted:
            self.model.set_attn_implementation(wanted)
        if self.model.config._attn_implementation != wanted:
            raise UnsupportedModel(f"its class does not take the attention function {wanted!r}")

    def plan(self, blocks: Sequence[Block]) -> Plan:
        """What one pass over these blocks is to do."""
        return build(blocks, self.device)

    @torch.inference_mode()
    def run(self, plan: Plan, extent: int, watchers: Sequence[LayerHook] = ()) -> Tensor:
        """Logits ``[n, V]`` of the rows ``plan.logits_at``; the KV of all rows is stored, of rows that ``watchers`` send away
        only that of the layers before. Rows whose logits are wanted must not be sent away.
        """
        with self._loan.turn(self):
            return self._run(plan, extent, watchers)

    def _run(self, plan: Plan, extent: int, watchers: Sequence[LayerHook]) -> Tensor:
        self.arena.reserve(extent)
        if self.route == "fast":
            if self.packed and not watchers:
                plan.pad(steady_rows(plan.count, self.width))
            tree = Tree(plan, self.arena, self._scratch)
            arguments: dict[str, Any] = {"use_cache": False, "tree": tree}
        else:
            cache = compat.ArenaCache(self.arena, plan)
            arguments = {"attention_mask": compat.masks_for(self.model, cache, self.dtype), "use_cache": True,
                         self._cache_name: cache}  # fmt: skip
        if self._chooses_rows:
            arguments["logits_to_keep"] = plan.logits_at
        arguments |= {"input_ids": plan.ids, "position_ids": plan.positions}
        logits: Tensor | None = None
        if not watchers:
            logits = self.model(**arguments).logits[0]
        else:

            def shrink(blocks: list[Block]) -> None:
                left = self.plan(blocks)
                if self.route == "fast":
                    tree.plan = left
                else:
                    cache.shrink(left.slots)

            with Watched(self.open_lens().layers, plan.blocks, watchers, shrink):
                logits = self.model(**arguments).logits[0]
        if logits is None:  # every row has left
            return torch.empty(0, 0, device=self.device)
        return logits if self._chooses_rows else logits[plan.logits_at]

    def open_lens(self) -> LogitLens:
        """The lens. Raises UnsupportedModel if the model cannot be looked at between its layers."""
        if self.lens is None:
            raise UnsupportedModel(f"this model cannot be looked at between its layers: {self.no_lens}")
        return self.lens

    @torch.inference_mode()
    def plain(self, ids: list[int]) -> Tensor:
        """Logits ``[len(ids), V]`` of a fresh, sequential pass without any cache: what everything is measured against."""
        with self._loan.turn(None):
            logits: Tensor = self.model(input_ids=torch.tensor([ids], device=self.device), use_cache=False).logits[0]
        return logits
