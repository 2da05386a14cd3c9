"""The forward pass over a plan: with the registered attention (fast) or with a 4D mask (portable)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rksc_tot.cache.arena import Arena
from rksc_tot.core.errors import EngineError, UnsupportedModel
from rksc_tot.engine.attention.plan import Block, Plan
from rksc_tot.engine.attention.planner import build
from rksc_tot.engine.attention.tree_attention import Scratch, Tree
from rksc_tot.engine.attention.vector_padding import steady_rows
from rksc_tot.engine.model import hf_compat as compat
from rksc_tot.engine.model.layer_hooks import HookedPass, LayerHook
from rksc_tot.engine.model.logit_lens import LogitLens
from rksc_tot.engine.model.model_copy import WeightsRead, copy_of
from rksc_tot.engine.model.onednn_linear import OneDNNWeights

Route = Literal["fast", "mask"]


class Forward:
    """Runs plans through a copy of a model, which shares its weights (see :mod:`rksc_tot.engine.model.model_copy`).

    Attributes
    ----------
    original
        The user's model. It is never changed.
    model
        The copy, with the attention function of the route and with packed layers.
    arena
        The KV arena that passes read and write.
    route
        How the model attends: ``fast`` (the registered attention function) or ``mask`` (its own, with a 4D mask).
    lens
        Computes label probabilities between layers; None if the model does not allow that, for the reason ``no_lens``.
    width
        Features of the widest layer; 0 if the model's config does not name them.
    """

    def __init__(self, model: PreTrainedModel, arena: Arena, *, packed: bool = False) -> None:
        self.original = model
        self.arena = arena
        self.lens: LogitLens | None = None
        self.no_lens = "the model was not probed"
        self.width: int = getattr(model.config.get_text_config(), "intermediate_size", None) or 0
        self._scratch = Scratch()
        self._wants_packing = packed
        self._chooses_rows = compat.keeps_logits(model)
        self._cache_name = compat.cache_keyword(model)
        self.read_weights()

    def read_weights(self) -> None:
        """Copy the model in its present state. Afterwards route and lens must be set again."""
        if getattr(self.original, "hf_quantizer", None) is not None:
            self.plain([0])  # quantised layers may lay out their weights in their first pass
        self.model = copy_of(self.original)
        self.route: Route = "mask"
        self.lens = None
        self._read, self._distrusted = WeightsRead(self.original), False
        self._packing = OneDNNWeights(self.model) if self._wants_packing else None
        if self._packing is not None:
            self._packing.put_in_place()

    @property
    def linear(self) -> str:
        """How linear layers are computed: ``packed`` (by oneDNN), ``stock``, or ``partly packed``."""
        if self._packing is None or not self._packing.layers:
            return "stock"
        return "partly packed" if self._packing.left else "packed"

    @property
    def packed(self) -> bool:
        """Whether oneDNN computes some linear layers."""
        return self.linear != "stock"

    @property
    def all_packed(self) -> bool:
        """Whether oneDNN computes all products of rows with weights."""
        return self._packing is not None and self._packing.complete

    @property
    def changed(self) -> bool:
        """Whether the model changed since its weights were read (see :class:`WeightsRead`)."""
        return self._distrusted or self._read.changed(thoroughly=True)

    def distrust_weights(self) -> None:
        """Refuse all passes until the weights are read again."""
        self._distrusted = True

    def check_weights(self, *, thoroughly: bool = False) -> None:
        """Raise EngineError if the weights changed since they were read (see :class:`WeightsRead`)."""
        if self._distrusted or self._read.changed(thoroughly=thoroughly):
            raise EngineError(
                "the model's weights or adapters have changed, and the KV was computed with the old ones",
                hint="call engine.clear() when no search runs: it drops all KV and reads the model again",
            )

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.model.device

    @property
    def depth(self) -> int:
        """Decoder layers."""
        return int(self.model.config.get_text_config().num_hidden_layers)

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the model."""
        return self.model.dtype

    def take(self, route: Route) -> None:
        """Switch to a route. Raises UnsupportedModel if the model's class does not accept the route's attention."""
        compat.set_attention(self.model, compat.FAST if route == "fast" else compat.attention_of(self.original))
        self.route = route

    def plan(self, blocks: Sequence[Block]) -> Plan:
        """The plan of one pass over these blocks."""
        return build(blocks, self.device)

    @torch.inference_mode()
    def run(self, plan: Plan, extent: int, hooks: Sequence[LayerHook] = ()) -> Tensor:
        """Run a plan; returns logits ``[n, V]`` of the rows ``plan.logits_at``.

        The KV of all rows is stored. If ``hooks`` make a row leave, only the KV of the layers before is stored. Rows in
        ``plan.logits_at`` must not leave.
        """
        self.check_weights()
        self.arena.reserve(extent)
        if self.route == "fast":
            if self.packed and not hooks:
                plan.pad(steady_rows(len(plan.slots), self.width))
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
        if not hooks:
            logits = self.model(**arguments).logits[0]
        else:

            def shrink(blocks: list[Block]) -> None:
                left = self.plan(blocks)
                if self.route == "fast":
                    tree.plan = left
                else:
                    cache.shrink(left.slots)

            with HookedPass(self.open_lens().layers, plan.blocks, hooks, shrink):
                logits = self.model(**arguments).logits[0]
        if logits is None:  # every row has left
            return torch.empty(0, 0, device=self.device)
        return logits if self._chooses_rows else logits[plan.logits_at]

    def open_lens(self) -> LogitLens:
        """The lens. Raises UnsupportedModel if the model allows no reads between its layers."""
        if self.lens is None:
            raise UnsupportedModel(f"this model allows no reads between its layers: {self.no_lens}")
        return self.lens

    @torch.inference_mode()
    def plain(self, ids: list[int]) -> Tensor:
        """Logits ``[len(ids), V]`` of a pass of the original model without a cache, as the reference."""
        rows = torch.tensor([ids], device=self.original.device)
        logits: Tensor = self.original(input_ids=rows, use_cache=False).logits[0]
        return logits
