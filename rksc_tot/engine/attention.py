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
from rksc_tot.cache.observed import Observed
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
    layer, observed = int(module.layer_idx), tree.arena.observed  # type: ignore[arg-type]
    keys, values = tree.arena.write(layer, key[0], value[0], tree.plan.slots)
    if observed is not None and layer == min(tree.arena.keys):
        observed.forget(tree.plan.slots)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    groups = tree.plan.groups
    results = [_attend(g, query[0] * scale, keys, values, sliding_window, softcap, s_aux, observed) for g in groups]
    if len(groups) == 1:  # its rows are all rows of the pass, in order
        return results[0][None], None
    out = query.new_empty(query.shape[2], *results[0].shape[1:])  # [Q, Hq, Dv]
    for group, result in zip(groups, results, strict=True):
        out[group.real] = result
    return out[None], None


def _attend(
    group: Group,
    query: Tensor,  # [Hq, Q, Dk], scaled
    keys: Tensor,  # [Hk, rows, Dk]
    values: Tensor,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,  # [Hq]
    observed: Observed | None,
) -> Tensor:
    """Attention output of a group's real rows, ``[n, Hq, Dv]``."""
    blocks, width = group.query_positions.shape
    heads, per = keys.shape[0], query.shape[0] // keys.shape[0]  # Hk, G
    query = gather(query, group.rows)  # [Hq, B * R, Dk]
    k, v = gather(keys, group.private), gather(values, group.private)  # [Hk, B * T, D]
    plain = softcap is None and sinks is None and observed is None
    if group.fresh and plain and (window is None or window >= width):
        fresh = F.scaled_dot_product_attention(
            query[None], k[None], v[None], is_causal=True, scale=1.0, enable_gqa=per > 1
        )
        return fresh[0].transpose(0, 1)

    # rows in the order [Hk, B, G, R]: all of a key head for the shared product, block by block for the private one
    q = query.view(heads, per, blocks, width, -1).transpose(1, 2).reshape(heads, blocks * per * width, -1)
    k, v = (part.reshape(heads * blocks, -1, part.shape[-1]) for part in (k, v))  # [Hk * B, T, D]
    shared_mask, private_mask = group.masks(window)
    private = _cap(q.reshape(heads * blocks, per * width, -1) @ k.transpose(1, 2), softcap)
    private = private.view(heads, blocks, per, width, -1) + private_mask
    scores = [private.view(heads, blocks * per * width, -1)]
    if group.shared is not None:
        k_shared, v_shared = gather(keys, group.shared), gather(values, group.shared)  # [Hk, S, D]
        shared = _cap(q @ k_shared.transpose(1, 2), softcap)
        if shared_mask is not None:
            shared = (shared.view(heads, blocks, per, width, -1) + shared_mask).view(shared.shape)
        scores.append(shared)
    if sinks is not None:
        sink = sinks.view(heads, 1, per, 1).to(q.dtype).expand(heads, blocks, per, width)
        scores.append(sink.reshape(heads, -1, 1))

    weights = torch.cat(scores, -1).softmax(-1)  # [Hk, B * G * R, T + S (+ 1)]
    own = k.shape[1]
    if observed is not None:
        _observe(observed, group, weights.view(heads, blocks, per, width, -1), shared_mask, private_mask)
    out = weights.view(heads * blocks, per * width, -1)[..., :own] @ v  # [Hk * B, G * R, Dv]
    if group.shared is not None:
        flat = out.view(heads, blocks * per * width, -1)
        out = torch.baddbmm(flat, weights[..., own : own + v_shared.shape[1]], v_shared)
    out = out.view(heads, blocks, per, width, -1).permute(1, 3, 0, 2, 4).reshape(blocks * width, heads * per, -1)
    return out if group.valid is None else out[group.valid]


def _observe(
    observed: Observed,
    group: Group,
    weights: Tensor,  # [Hk, B, G, R, T + S (+ 1)]
    shared_mask: Tensor | None,  # [B, 1, R, S]
    private_mask: Tensor,  # [B, 1, R, T]
) -> None:
    """Note what the group's real rows looked at."""
    heads, blocks, per, width, _ = weights.shape
    real = torch.ones(blocks * width, dtype=torch.bool, device=weights.device)
    if group.valid is not None:
        real = torch.zeros_like(real).index_fill_(0, group.valid, True)
    rows = real.view(blocks, width, 1)
    mass = (weights.sum((0, 2)) * rows).sum(1)  # [B, T + S (+ 1)]
    own = private_mask.shape[-1]
    looks = ((private_mask[:, 0] == 0) & rows).sum(1) * (heads * per)  # [B, T]
    observed.note(_index(group.private, weights), mass[:, :own].flatten(), looks.flatten())
    if group.shared is not None:
        shared = _index(group.shared, weights)
        seen = rows.expand(-1, -1, len(shared)) if shared_mask is None else (shared_mask[:, 0] == 0) & rows
        observed.note(shared, mass[:, own : own + len(shared)].sum(0), seen.sum((0, 1)) * (heads * per))


def _index(slots: slice | Tensor, like: Tensor) -> Tensor:
    return torch.arange(slots.start, slots.stop, device=like.device) if isinstance(slots, slice) else slots


def _cap(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap
