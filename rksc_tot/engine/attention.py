"""Attention over a tree: shared ancestors as one product for all who share them, the private rest batched, one softmax.

The function is registered with transformers' ``AttentionInterface``; no model code is changed and no kernel is written.
Query heads that share a key head are folded into the query rows, so keys are never expanded. Sums over keys are taken so that
they do not depend on who shares what (see :mod:`rksc_tot.engine.plan`): the normaliser in double precision, weights times
values from seam to seam.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rksc_tot.cache.arena import Arena, gather
from rksc_tot.cache.observed import Observed
from rksc_tot.engine.fused import attend_group
from rksc_tot.engine.plan import SEAM, Group, Part, Plan
from rksc_tot.engine.products import add_weights_times_values, queries_times_keys
from rksc_tot.engine.vectors import in_whole_vectors
from rksc_tot.errors import EngineError


class Tree:
    """What a forward pass hands to the attention function of every layer."""

    __slots__ = ("arena", "plan", "scratch")

    def __init__(self, plan: Plan, arena: Arena, scratch: Scratch) -> None:
        self.plan = plan
        self.arena = arena
        self.scratch = scratch


LEAST_ROWS = 4
"""In products with fewer rows MKL sums up in another order, and a thread may get what is left of a multiple of these."""
BITS = math.log2(math.e)
"""Scores are kept in bits, not nats: torch computes powers of two several times as fast as those of e."""


class Scratch:
    """Memory for scores, used again by every layer and pass: to ask the system for it takes longer than to fill it."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)
        self._used = 0

    def reset(self) -> None:
        """What was taken is free again."""
        self._used = 0

    def take(self, sets: int, rows: int, keys: int, like: Tensor) -> Tensor:
        """``[sets, rows, keys]``, filled with anything."""
        count = sets * rows * keys
        first, self._used = self._used, self._used + in_whole_vectors(count)
        if self._used > len(self._memory) or (like.dtype, like.device) != (self._memory.dtype, self._memory.device):
            first, self._used = 0, in_whole_vectors(count)
            self._memory = like.new_empty(4 * self._used)
        return self._memory[first : first + count].view(sets, rows, keys)


def exp2_(scores: Tensor) -> Tensor:
    """Powers of two in place of scores from :meth:`Scratch.take`, all by the same instructions, and of what is behind them."""
    count = in_whole_vectors(scores.numel())
    scores.as_strided((count,), (1,)).exp2_()
    return scores


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
    layer, observed, plan = int(module.layer_idx), tree.arena.observed, tree.plan  # type: ignore[arg-type]
    keys, values = tree.arena.write(layer, key[0, :, : plan.count], value[0, :, : plan.count], plan.slots)
    if observed is not None and layer == min(tree.arena.keys):
        observed.forget(plan.slots)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query = query[0] * (scale if softcap is not None else scale * BITS)
    results = [
        _attend(g, query, keys, values, sliding_window, softcap, s_aux, observed, tree.scratch) for g in plan.groups
    ]
    rows = query.shape[1]
    if len(results) == 1 and plan.groups[0].real == slice(0, rows):
        return results[0][None], None
    out = query.new_zeros(rows, *results[0].shape[1:])  # [Q, Hq, Dv]
    for group, result in zip(plan.groups, results, strict=True):
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
    scratch: Scratch,
) -> Tensor:
    """Attention output of a group's real rows, ``[n, Hq, Dv]``. ``N = G * R`` rows of a piece meet a key head."""
    pieces, width = group.queries.shape
    heads, per = keys.shape[0], query.shape[0] // keys.shape[0]  # Hk, G
    q = gather(query, group.rows).view(heads, per, pieces, width, -1)
    q = q.transpose(1, 2).reshape(heads, pieces, per * width, -1)  # [Hk, B, N, Dk]

    if q.device.type == "cuda" and softcap is None and observed is None:
        out = attend_group(group, q / BITS, keys, values, window, sinks)
    else:
        out = _by_products(group, q, keys, values, window, softcap, sinks, observed, scratch)
    out = out.view(heads, pieces, per, width, -1).permute(1, 3, 0, 2, 4).reshape(pieces * width, heads * per, -1)
    return out if group.valid is None else out[group.valid]


def _by_products(
    group: Group,
    q: Tensor,  # [Hk, B, N, Dk]
    keys: Tensor,
    values: Tensor,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    observed: Observed | None,
    scratch: Scratch,
) -> Tensor:
    """``[Hk, B, N, Dv]``: the product of queries and keys, one softmax over all parts, and that of weights and values."""
    heads, pieces, rows, _ = q.shape
    scratch.reset()
    scores = [_scores(part, group, q, keys, window, softcap, scratch) for part in group.parts]
    top = scores[0].new_full(q.shape[:-1], float("-inf"))  # [Hk, B, N]
    for part, score in zip(group.parts, scores, strict=True):
        _update(part, top, score.amax(-1), torch.maximum)
    total = torch.zeros(top.shape, dtype=torch.float64, device=top.device)
    if sinks is not None:
        width = group.queries.shape[1]
        sink = sinks.view(heads, 1, -1, 1).to(top.dtype).expand(-1, pieces, -1, width).reshape(top.shape)
        sink = sink * BITS
        top = torch.maximum(top, sink)
        total += (sink - top).exp2()

    out = values.new_zeros(*top.shape, values.shape[-1], dtype=top.dtype)  # [Hk, B, N, Dv]
    for part, score in zip(group.parts, scores, strict=True):
        exp2_(score.sub_(_of_part(part, top[..., None])))  # [Hk * C, P * N, T]
        _update(part, total, _sums(score, part.step), torch.add)
        _add_values(part, out, score, gather(values, part.slots).reshape(len(score), score.shape[-1], -1))
    if observed is not None:
        for part, score in zip(group.parts, scores, strict=True):
            seen = score[:, : part.rows(rows)] / _of_part(part, total[..., None])[:, : part.rows(rows)]
            _observe(observed, part, group, seen, window)
    return out.div_(total.to(out.dtype)[..., None]).to(values.dtype)


def _scores(
    part: Part, group: Group, q: Tensor, keys: Tensor, window: int | None, softcap: float | None, scratch: Scratch
) -> Tensor:
    """``[Hk * C, P * N, T]`` in bits, -inf where a key is hidden; single precision at least."""
    heads, _, n, size = q.shape
    k = gather(keys, part.slots).reshape(heads * part.sets, -1, size)
    rows = _of_part(part, q)
    scores = scratch.take(len(k), rows.shape[1], k.shape[1], rows.float() if rows.dtype.itemsize < 4 else rows)
    queries_times_keys(rows, k, scores)
    if softcap is not None:
        scores.copy_(_cap(scores, softcap))
    bias = part.bias(window, group.queries, group.end, scores.dtype)
    if bias is not None:
        width = group.queries.shape[1]
        real = scores[:, : bias.shape[1] * n]
        real.view(heads, part.sets, -1, n // width, width, k.shape[1]).add_(bias)
    return scores


def _cap(scores: Tensor, softcap: float) -> Tensor:
    """Scores in nats, capped, in bits."""
    capped: Tensor = torch.tanh(scores / softcap) * (softcap * BITS)
    return capped


def _sums(weights: Tensor, step: int) -> Tensor:
    """``[sets, rows]`` over keys, added up from seam to seam as values are."""
    if step > SEAM:
        return weights.sum(-1)
    missing = -weights.shape[-1] % SEAM
    whole = F.pad(weights, (0, missing)) if missing else weights
    sums: Tensor = whole.unflatten(-1, (-1, SEAM)).sum(-1).double().sum(-1)
    return sums


def _add_values(part: Part, out: Tensor, weights: Tensor, values: Tensor) -> None:
    """Add ``weights [Hk * C, P * N, T] @ values [Hk * C, T, Dv]`` to ``out [Hk, B, N, Dv]``, from seam to seam."""
    rows = _of_part(part, out)
    add_weights_times_values(rows, weights, values, part.step)
    if rows.untyped_storage().data_ptr() != out.untyped_storage().data_ptr():  # it was a copy
        _update(part, out, rows, lambda _, found, out: out.copy_(found))


def _of_part(part: Part, all_of: Tensor) -> Tensor:
    """``[Hk * C, P * N, D]`` for a part's pieces, of ``[Hk, B, N, D]``; with rows of zeros up to a multiple of LEAST_ROWS."""
    heads, size = all_of.shape[0], all_of.shape[3]
    rows = all_of[:, part.pieces].reshape(heads * part.sets, -1, size)
    missing = -rows.shape[1] % LEAST_ROWS
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows


def _update(part: Part, all_of: Tensor, found: Tensor, how: Callable[..., Tensor]) -> None:
    """Join what a part's pieces found, ``[Hk * C, P * N, …]``, with what is known of all, ``[Hk, B, N, …]``."""
    n = all_of.shape[2]
    found = found[:, : part.rows(n)].reshape(all_of.shape[0], -1, *all_of.shape[2:])  # [Hk, C * P, N, …]
    if part.real is not None:
        found = found[:, part.real]
    own = all_of[:, part.members]
    how(own, found, out=own)
    if not isinstance(part.members, slice):  # it was a copy
        all_of[:, part.members] = own


def _observe(observed: Observed, part: Part, group: Group, weights: Tensor, window: int | None) -> None:
    """Note what a group's real rows looked at: ``weights [Hk * C, P * N, T]``."""
    pieces, width = group.queries.shape
    heads = len(weights) // part.sets
    real = torch.ones(pieces * width, dtype=torch.bool, device=weights.device)
    if group.valid is not None:
        real = torch.zeros_like(real).index_fill_(0, group.valid, True)
    rows = real.view(pieces, width)[part.pieces]  # [C * P, R]
    if part.real is not None:
        rows = rows & torch.zeros(len(rows), 1, dtype=torch.bool, device=rows.device).index_fill_(0, part.real, True)
    rows = rows.view(part.sets, -1, 1, width, 1)  # [C, P, 1, R, 1]
    weights = weights.reshape(heads, part.sets, rows.shape[1], -1, width, weights.shape[-1])  # [Hk, C, P, G, R, T]
    mass = (weights * rows).sum((0, 2, 3, 4))  # [C, T]
    bias = part.bias(window, group.queries, group.end, weights.dtype)
    seen = rows if bias is None else rows & (bias == 0)
    looks = seen.expand(*rows.shape[:-1], mass.shape[-1]).sum((1, 2, 3)) * (heads * weights.shape[3])
    slots = part.slots
    if isinstance(slots, slice):
        slots = torch.arange(slots.start, slots.stop, device=weights.device)
    observed.note(slots, mass.flatten(), looks.flatten())
