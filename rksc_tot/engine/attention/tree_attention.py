"""Attention over a tree: one product for shared ancestors of several rows, a batch of private keys, one softmax.

The function is registered with transformers' ``AttentionInterface``; no model code is changed and no kernel is written.
Query heads that share a key head are folded into the query rows, so keys are never expanded. Sums over keys do
not depend on shared ancestors (see :mod:`rksc_tot.engine.attention.plan`): the normaliser is summed in double precision, and
weights times values tile by tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rksc_tot.cache.arena import Arena, gather
from rksc_tot.core.errors import EngineError
from rksc_tot.engine.attention.fused import attend_group
from rksc_tot.engine.attention.matmul import LEAST_ROWS, add_weights_times_values, queries_times_keys, rows_allowed
from rksc_tot.engine.attention.plan import TILE, KeySet, PieceGroup, Plan
from rksc_tot.engine.attention.vector_padding import in_whole_vectors

Note = Callable[[Tensor, Tensor, Tensor], None]
"""Takes slots ``[n]``, the attention of each key head to them ``[Hk, n]``, and the number of rows that see each ``[n]``."""


class Tree:
    """The plan, the arena and scratch memory: arguments of the attention function in every layer of a pass."""

    __slots__ = ("arena", "plan", "scratch")

    def __init__(self, plan: Plan, arena: Arena, scratch: Scratch) -> None:
        self.plan = plan
        self.arena = arena
        self.scratch = scratch


BITS = math.log2(math.e)
"""Converts scores from nats to bits: torch computes powers of two several times as fast as powers of e."""


class Scratch:
    """Memory for scores, reused by all layers and passes: allocating it takes longer than filling it.

    It grows to the size of the largest group of pieces, up to :data:`MOST`; larger requests are allocated each time.
    """

    MOST = 64 << 20  # elements

    def __init__(self) -> None:
        self._memory = torch.empty(0)
        self._used = 0

    def reset(self) -> None:
        """Free all memory."""
        self._used = 0

    def take(self, sets: int, rows: int, keys: int, like: Tensor) -> Tensor:
        """``[sets, rows, keys]`` of uninitialised memory."""
        count = sets * rows * keys
        first, self._used = self._used, self._used + in_whole_vectors(count)
        if self._used > self.MOST:
            return like.new_empty(self._used - first)[:count].view(sets, rows, keys)
        if self._used > len(self._memory) or (like.dtype, like.device) != (self._memory.dtype, self._memory.device):
            self._memory = like.new_empty(min(self.MOST, self._used * 5 // 4))
        return self._memory[first : first + count].view(sets, rows, keys)


def exp2_(scores: Tensor) -> Tensor:
    """Replace scores from :meth:`Scratch.take`, and the padding after them, by powers of two, in whole vectors."""
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
        raise EngineError("the model does not pass the tree plan to its attention function")
    layer, observed, plan = int(module.layer_idx), tree.arena.attention_stats, tree.plan  # type: ignore[arg-type]
    keys, values = tree.arena.write(layer, key[0, :, : len(plan.slots)], value[0, :, : len(plan.slots)], plan.slots)
    if observed is not None and layer == min(tree.arena.keys):
        observed.forget(plan.slots)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    wide = torch.promote_types(query.dtype, torch.float32)  # half precision would round a score of 20 by up to 0.06
    query = query[0].to(wide) * (scale if softcap is not None else scale * BITS)
    note = None if observed is None else partial(observed.note, layer)
    results = [_attend(g, query, keys, values, sliding_window, softcap, s_aux, note, tree.scratch) for g in plan.groups]
    rows = query.shape[1]
    if len(results) == 1 and plan.groups[0].real == slice(0, rows):
        return results[0][None], None
    out = results[0].new_zeros(rows, *results[0].shape[1:])  # [Q, Hq, Dv]
    for group, result in zip(plan.groups, results, strict=True):
        out[group.real] = result
    return out[None], None


def _attend(
    group: PieceGroup,
    query: Tensor,  # [Hq, Q, Dk], scaled
    keys: Tensor,  # [Hk, rows, Dk]
    values: Tensor,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,  # [Hq]
    note: Note | None,
    scratch: Scratch,
) -> Tensor:
    """Attention output of a group's real rows, ``[n, Hq, Dv]``. A piece has ``N = G * R`` query rows for each key head."""
    pieces, width = group.queries.shape
    heads, per = keys.shape[0], query.shape[0] // keys.shape[0]  # Hk, G
    n = per * width
    q = gather(query, group.rows).view(heads, per, pieces, width, -1).transpose(1, 2)
    if q.device.type == "cuda" and softcap is None and note is None:
        out = attend_group(group, (q.reshape(heads, pieces, n, -1) / BITS).to(keys.dtype), keys, values, window, sinks)
    else:
        rows = q.new_zeros(heads, pieces, n if rows_allowed(n) else n + -n % LEAST_ROWS, q.shape[-1])
        rows[:, :, :n].unflatten(2, (per, width)).copy_(q)
        out = _by_products(group, rows, n, keys, values, window, softcap, sinks, note, scratch)
    out = out.view(heads, pieces, per, width, -1).permute(1, 3, 0, 2, 4).reshape(pieces * width, heads * per, -1)
    return out if group.valid is None else out[group.valid]


def _by_products(
    group: PieceGroup,
    q: Tensor,  # [Hk, B, W, Dk]
    n: int,
    keys: Tensor,
    values: Tensor,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    note: Note | None,
    scratch: Scratch,
) -> Tensor:
    """``[Hk, B, N, Dv]``: queries times keys, one softmax over all parts, weights times values.

    ``W >= N``: a piece with fewer rows than a product needs is padded with rows of zeros.
    """
    heads, pieces, whole, _ = q.shape
    scratch.reset()
    parts = [_partial(part, group, q, n, keys, window, softcap, scratch) for part in group.parts]
    *shared, private = parts  # the private part has all pieces
    top = private.scores.amax(-1).view(heads, pieces, whole)
    for part in shared:
        part.join(top, part.scores.amax(-1), torch.maximum)
    if sinks is not None:
        sink = (
            (sinks * BITS).to(top.dtype).view(heads, 1, -1).repeat_interleave(group.queries.shape[1], -1)
        )  # [Hk, 1, N]
        top[:, :, :n] = torch.maximum(top[:, :, :n], sink)

    for part in parts:
        exp2_(part.scores.sub_(part.of(top[..., None])))
    total = _sums(private.scores, TILE).double().view(top.shape)
    for part in shared:
        part.join(total, _sums(part.scores, part.step), torch.add)
    if sinks is not None:
        total[:, :, :n] += (sink - top[:, :, :n]).exp2()

    out = values.new_zeros(heads, pieces, whole, values.shape[-1], dtype=top.dtype)
    for part in parts:  # in the order of positions
        part.add_values(out, values)
    if note is not None:
        for part in parts:
            _observe(note, part, group, part.scores / part.of(total[..., None]), n, window)
    return (out[:, :, :n] / total[:, :, :n, None].to(out.dtype)).to(values.dtype)


@dataclass(slots=True)
class PartialAttention:
    """Attention of pieces to one part: ``scores [Hk * C, P * W, T]`` in bits, later weights; -inf where a key is hidden.

    ``each``: rows of a piece in the product, ``N`` or ``W``.
    """

    part: KeySet
    each: int
    scores: Tensor

    @property
    def step(self) -> int:
        """Keys of one product of weights and values."""
        return self.part.step

    def of(self, all_of: Tensor) -> Tensor:
        """The part's rows ``[Hk * C, P * each, D]`` of ``[Hk, B, W, D]``."""
        return _of_part(self.part, self.each, all_of)

    def join(self, all_of: Tensor, found: Tensor, how: Callable[..., Tensor]) -> None:
        """Combine the result of the part's pieces ``[Hk * C, P * each, …]`` into that of all pieces ``[Hk, B, W, …]``."""
        own = all_of[:, self.part.members, : self.each]
        found = found.view(all_of.shape[0], -1, *own.shape[2:])  # [Hk, C * P, each, …]
        if self.part.real is not None:
            found = found[:, self.part.real]
        how(own, found, out=own)
        if not isinstance(self.part.members, slice):  # the index made a copy
            all_of[:, self.part.members, : self.each] = own

    def add_values(self, out: Tensor, values: Tensor) -> None:
        """Add the weighted values to ``out [Hk, B, W, Dv]``, tile by tile."""
        values = gather(values, self.part.slots).reshape(self.scores.shape[0], self.scores.shape[-1], -1)
        values = values.to(self.scores.dtype)
        rows = self.of(out)
        add_weights_times_values(rows, self.scores, values, self.step)
        if rows.data_ptr() != out[:, self.part.pieces].data_ptr() or not isinstance(self.part.pieces, slice):
            self.join(out, rows, lambda _, found, out: out.copy_(found))


def _partial(
    part: KeySet,
    group: PieceGroup,
    q: Tensor,
    n: int,
    keys: Tensor,
    window: int | None,
    softcap: float | None,
    scratch: Scratch,
) -> PartialAttention:
    heads, _, whole, size = q.shape
    each = whole if part is group.parts[-1] or not rows_allowed(part.rows(n)) else n
    k = gather(keys, part.slots).reshape(heads * part.sets, -1, size).to(q.dtype)
    rows = _of_part(part, each, q)
    scores = scratch.take(k.shape[0], rows.shape[1], k.shape[1], rows)
    queries_times_keys(rows, k, scores)
    if softcap is not None:
        scores.copy_(_cap(scores, softcap))
    bias = part.bias(window, group.queries, group.end, scores.dtype)
    if bias is not None:
        real = scores.view(heads, part.sets, -1, each, k.shape[1])[:, :, :, :n]
        real.unflatten(3, (-1, group.queries.shape[1])).add_(bias)
    return PartialAttention(part, each, scores)


def _of_part(part: KeySet, each: int, all_of: Tensor) -> Tensor:
    """The rows ``[Hk * C, P * each, D]`` of a part's pieces, of ``[Hk, B, W, D]``."""
    return all_of[:, part.pieces, :each].reshape(all_of.shape[0] * part.sets, -1, all_of.shape[-1])


def _cap(scores: Tensor, softcap: float) -> Tensor:
    """Apply the soft-cap to scores in nats; returns bits."""
    capped: Tensor = torch.tanh(scores / softcap) * (softcap * BITS)
    return capped


def _sums(weights: Tensor, step: int) -> Tensor:
    """``[sets, rows]``: sums over keys, tile by tile like values."""
    if step > TILE:
        return weights.sum(-1)
    missing = -weights.shape[-1] % TILE
    whole = F.pad(weights, (0, missing)) if missing else weights
    if whole.shape[-1] == TILE:
        return whole.sum(-1)
    sums: Tensor = whole.unflatten(-1, (-1, TILE)).sum(-1).double().sum(-1)
    return sums


def _observe(
    note: Note, seen: PartialAttention, group: PieceGroup, weights: Tensor, n: int, window: int | None
) -> None:
    """Report the attention of a group's real rows to ``note``: ``weights [Hk * C, P * each, T]``."""
    part = seen.part
    pieces, width = group.queries.shape
    heads = len(weights) // part.sets
    real = torch.ones(pieces * width, dtype=torch.bool, device=weights.device)
    if group.valid is not None:
        real = torch.zeros_like(real).index_fill_(0, group.valid, True)
    rows = real.view(pieces, width)[part.pieces]  # [C * P, R]
    if part.real is not None:
        rows = rows & torch.zeros(len(rows), 1, dtype=torch.bool, device=rows.device).index_fill_(0, part.real, True)
    rows = rows.view(part.sets, -1, 1, width, 1)  # [C, P, 1, R, 1]
    weights = weights.view(heads, part.sets, rows.shape[1], seen.each, -1)[:, :, :, :n]
    weights = weights.unflatten(3, (-1, width))  # [Hk, C, P, G, R, T]
    mass = (weights * rows).sum((2, 3, 4))  # [Hk, C, T]
    bias = part.bias(window, group.queries, group.end, weights.dtype)
    looked = rows if bias is None else rows & (bias == 0)
    looks = looked.expand(*rows.shape[:-1], mass.shape[-1]).sum((1, 2, 3)) * (heads * weights.shape[3])
    slots = part.slots
    if isinstance(slots, slice):
        slots = torch.arange(slots.start, slots.stop, device=weights.device)
    note(slots, mass.flatten(1), looks.flatten())
