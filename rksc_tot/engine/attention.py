"""Attention over a tree: the shared ancestors of a group as one product, the private rest batched, one softmax over both.

The function is registered with transformers' ``AttentionInterface``; no model code is changed and no kernel is written.
Query heads that share a key head are folded into the query rows, so keys are never expanded.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rksc_tot.cache.arena import Arena, gather
from rksc_tot.engine.plan import Group, Plan
from rksc_tot.errors import EngineError


class Tree:
    """What a forward pass hands to the attention function of every layer."""

    __slots__ = ("arena", "plan")

    def __init__(self, plan: Plan, arena: Arena) -> None:
        self.plan = plan
        self.arena = arena


def tree_attention(
    module: nn.Module,
    query: Tensor,  # [1, Hq, Q, Dk]
    key: Tensor,  # [1, Hk, Q, Dk]
    value: Tensor,  # [1, Hk, Q, Dv]
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    tree: Tree | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Store the new keys and values, then attend. Returns ``[1, Q, Hq, Dv]``."""
    if tree is None:
        raise EngineError("the model does not pass the tree plan on to its attention")
    keys, values = tree.arena.write(int(module.layer_idx), key[0], value[0], tree.plan.slots)  # type: ignore[arg-type]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = query.new_empty(query.shape[2], query.shape[1], values.shape[-1])  # [Q, Hq, Dv]
    for group in tree.plan.groups:
        result = _attend(group, query[0] * scale, keys, values, sliding_window, softcap, s_aux)
        out[group.row_index[group.valid]] = result[group.valid]
    return out[None], None


def _attend(
    group: Group,
    query: Tensor,  # [Hq, Q, Dk], scaled
    keys: Tensor,  # [Hk, rows, Dk]
    values: Tensor,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,  # [Hq]
) -> Tensor:
    """Attention output of a group's rows, ``[B * R, Hq, Dv]``."""
    blocks, width = group.rows.shape
    heads, per = keys.shape[0], query.shape[0] // keys.shape[0]  # Hk, G
    if group.fresh and (window is None or window >= width) and softcap is None and sinks is None:
        k, v = gather(keys, group.private)[None], gather(values, group.private)[None]  # [1, Hk, R, D]
        fresh = F.scaled_dot_product_attention(
            query[None, :, group.row_index], k, v, is_causal=True, scale=1.0, enable_gqa=per > 1
        )
        return fresh[0].transpose(0, 1)
    shared_mask, private_mask = group.masks(window)
    q = query[:, group.row_index].view(heads, per, blocks, width, -1)

    k = gather(keys, group.private).view(heads, blocks, -1, keys.shape[-1])  # [Hk, B, T, Dk]
    v = gather(values, group.private).view(heads, blocks, -1, values.shape[-1])
    q_private = q.transpose(1, 2).reshape(heads, blocks, per * width, -1)
    scores = _cap(q_private @ k.transpose(-1, -2), softcap).view(heads, blocks, per, width, -1)
    scores = scores + private_mask
    peak = scores.amax(-1, keepdim=True)  # [Hk, B, G, R, 1]

    if group.shared is not None:
        k_shared, v_shared = gather(keys, group.shared), gather(values, group.shared)  # [Hk, S, D]
        shared = _cap(q.reshape(heads, per * blocks * width, -1) @ k_shared.transpose(-1, -2), softcap)
        if shared_mask is not None:
            shared = shared.view(heads, per, blocks * width, -1) + shared_mask
        shared = shared.view(heads, per, blocks, width, -1).transpose(1, 2)  # [Hk, B, G, R, S]
        peak = torch.maximum(peak, shared.amax(-1, keepdim=True))
    if sinks is not None:
        sink = sinks.view(heads, 1, per, 1, 1).to(scores.dtype)
        peak = torch.maximum(peak, sink)

    weights = (scores - peak).exp_()
    total = weights.sum(-1, keepdim=True)
    out = (weights.view(heads, blocks, per * width, -1) @ v).view(heads, blocks, per, width, -1)
    if group.shared is not None:
        weights = (shared - peak).exp_()
        total = total + weights.sum(-1, keepdim=True)
        flat = weights.reshape(heads, blocks * per * width, -1) @ v_shared
        out = out + flat.view(heads, blocks, per, width, -1)
    if sinks is not None:
        total = total + (sink - peak).exp_()
    out = out / total
    return out.permute(1, 3, 0, 2, 4).reshape(blocks * width, heads * per, -1)


def _cap(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap
