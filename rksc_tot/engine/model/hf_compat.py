"""All uses of private or version-dependent parts of transformers (written for 5.24).

Relied on: ``AttentionInterface.register`` / ``AttentionMaskInterface.register``; extra keyword arguments of a model's
``forward`` reach the attention function; a 4D ``attention_mask`` (or a dict of them by layer type, for models whose config
has ``layer_types``) is used as it is; a model uses ``update``, ``get_seq_length`` and ``get_mask_sizes`` of a cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from rksc_tot.cache.arena import Arena, gather
from rksc_tot.cache.prefix_tree import Segment
from rksc_tot.core.errors import UnsupportedModel
from rksc_tot.engine.attention.plan import Plan
from rksc_tot.engine.attention.tree_attention import tree_attention

FAST = "rksc_tree"


def register() -> None:
    """Register the tree attention with transformers (idempotent; no existing function is replaced)."""
    AttentionInterface.register(FAST, tree_attention)
    AttentionMaskInterface.register(FAST, _no_mask)


def _no_mask(*_: Any, **__: Any) -> None:
    """No mask: the plan decides which keys a row sees."""


def attention_of(model: PreTrainedModel) -> str:
    """The name of a model's attention function."""
    name: str = model.config._attn_implementation
    return name


def set_attention(model: PreTrainedModel, name: str) -> None:
    """Set a model's attention function. Raises UnsupportedModel if its class does not accept it."""
    if attention_of(model) != name:
        model.set_attn_implementation(name)
    if attention_of(model) != name:
        raise UnsupportedModel(f"its class does not accept the attention function {name!r}")


def cache_keyword(model: PreTrainedModel) -> str:
    """The name of the cache argument of this model's forward."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def cached_logits(model: PreTrainedModel, pieces: Sequence[Tensor]) -> Tensor:
    """Logits ``[B, length, V]`` of a batch that the model computes in pieces ``[B, n]`` with its own cache."""
    cache = DynamicCache(config=model.config.get_text_config())
    found: list[Tensor] = [
        model(input_ids=piece, use_cache=True, **{cache_keyword(model): cache}).logits for piece in pieces
    ]
    return torch.cat(found, 1)


def keeps_logits(model: PreTrainedModel) -> bool:
    """Whether the model can compute logits for chosen rows only."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def rotary_modules(model: PreTrainedModel) -> list[nn.Module]:
    """The modules of a model that compute cosines and sines of positions (RoPE)."""
    return [
        module
        for module in model.modules()
        if any(name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False))
    ]


class ArenaCache(Cache):
    """A transformers cache that writes to the arena and returns the union of all slots that the pass can see.

    ``N`` keys: every ancestor segment of every block once, then the pass's own ``Q`` rows.
    """

    def __init__(self, arena: Arena, plan: Plan) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self._arena = arena
        self._plan = plan
        device = plan.ids.device
        slots: list[int] = []
        positions: list[int] = []
        column: dict[Segment, int] = {}
        for block in plan.blocks:
            for segment in block.lineage:
                if segment not in column:
                    column[segment] = len(slots)
                    slots += segment.kv.slots
                    positions += segment.read(segment.start, segment.end)[1]
        before = len(slots)
        visible = torch.zeros(plan.ids.shape[1], before + plan.ids.shape[1], dtype=torch.bool, device=device)
        row = 0
        for block in plan.blocks:
            rows = len(block.tokens)
            for segment in block.lineage:
                first = column[segment]
                seen = len(segment.read(segment.start, block.start)[0]) if segment.start < block.start else 0
                visible[row : row + rows, first : first + seen] = True
            own = torch.ones(rows, rows, dtype=torch.bool, device=device).tril_()
            visible[row : row + rows, before + row : before + row + rows] = own
            row += rows
        self.visible = visible  # [Q, N]
        self.positions = torch.cat([torch.tensor(positions, dtype=torch.long, device=device), plan.positions[0]])  # [N]
        self._seen = torch.cat([torch.tensor(slots, dtype=torch.long, device=device), plan.slots])  # [N]
        self._before = before
        self._slots = plan.slots

    def shrink(self, slots: Tensor) -> None:
        """Expect only the rows with these slots in the next layers."""
        self._slots = slots

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store and return keys and values ``[1, Hk, N, D]``."""
        keys, values = self._arena.write(layer_idx, key_states[0], value_states[0], self._slots)
        return gather(keys, self._seen)[None], gather(values, self._seen)[None]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Visible slots from before this pass."""
        return self._before

    def get_mask_sizes(self, *_: Any, **__: Any) -> tuple[int, int]:
        """Key length and offset; correct, though models do not use them with 4D masks."""
        return self._seen.shape[0], 0

    def mask(self, window: int | None) -> Tensor:
        """Boolean mask ``[1, 1, Q, N]`` under a window in positions."""
        visible = self.visible
        if window is not None:
            visible = visible & (self.positions[None, :] > self._plan.positions[0][:, None] - window)
        return visible[None, None]


def masks_for(model: PreTrainedModel, cache: ArenaCache, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
    """4D masks in the form that the model accepts: one tensor, or a dict with one tensor for each layer type."""
    config = model.config.get_text_config()
    additive = attention_of(model) != "sdpa"

    def form(window: int | None) -> Tensor:
        mask = cache.mask(window)
        if not additive:
            return mask
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)

    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    if not hasattr(config, "layer_types"):
        return form(window)
    kinds = set(config.layer_types)
    return {kind: form(window if kind == "sliding_attention" else None) for kind in kinds}
