"""Attention by the fused operators that torch ships, which also tell the log-sum-exp, so that parts can be joined.

Attention over several sets of keys is that over each of them, weighted: with outputs ``o_i`` and log-sum-exps ``l_i`` of the
scores, ``l = log Σ exp l_i`` and ``o = Σ exp(l_i - l) o_i`` (Hydragen, arXiv 2402.05099, section 3.1). Nothing of the size of
rows times keys is written to memory, and scores are kept in single precision whatever the model computes in.

Which operator is a question of the device, the dtype and the sizes of the heads, see :func:`operator_for`. None of them knows a
soft-cap, and all but the last are private names of torch: the probe at load finds out whether they give what the model gives.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rksc_tot.cache.arena import gather
from rksc_tot.engine.attention.plan import KeySet, PieceGroup

Operator = Literal["flash", "efficient", "cpu", "matmul"]

HALF = (torch.bfloat16, torch.float16)
HEAD_ALIGNMENT = 8  # elements: 16 bytes of half precision
BIAS_ALIGNMENT = 16  # elements from row to row, by which the operator reads a bias
LSE_FLOOR = torch.finfo(torch.float32).min


class Attended(NamedTuple):
    """What rows got from a set of keys: ``out [..., M, Dv]`` and ``lse [..., M]``, the log-sum-exp of their scores in single
    precision. A row that sees none of the keys has 0 and -inf.
    """

    out: Tensor
    lse: Tensor


def operator_for(query: Tensor, value: Tensor, *, masked: bool) -> Operator:
    """Which operator attends with ``query [..., Dk]`` to ``value [..., Dv]``, with a bias or without.

    ``flash``: CUDA of compute capability 8 on, half precision, no bias, ``Dk == Dv <= 256``. ``efficient``: CUDA otherwise.
    ``cpu``: where ``Dk == Dv``. ``matmul``: two products and a softmax; anywhere, and where head sizes suit no other.
    """
    of_query, of_value = query.shape[-1], value.shape[-1]
    if query.device.type == "cpu":
        return "cpu" if of_query == of_value else "matmul"
    if query.device.type != "cuda" or of_query % HEAD_ALIGNMENT or of_value % HEAD_ALIGNMENT:
        return "matmul"
    flash = not masked and query.dtype in HALF and of_query == of_value <= 256
    return "flash" if flash and torch.cuda.get_device_capability(query.device) >= (8, 0) else "efficient"


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, *, by: Operator) -> Attended:
    """Attention of ``H`` sets of rows to as many sets of keys, for each of ``A`` heads.

    Parameters
    ----------
    query, key, value
        ``[A, H, M, Dk]`` (scaled already), ``[A, H, T, Dk]`` and ``[A, H, T, Dv]``, of one dtype.
    bias
        Added to the scores, ``[H, M, T]`` of any floating dtype: the same for all heads. -inf hides a key.
    by
        See :func:`operator_for`.
    """
    if not key.shape[2]:
        return Attended(query.new_zeros(*query.shape[:3], value.shape[-1]), _nothing(query))
    if by == "matmul":
        return _by_matmul(query, key, value, bias)
    mask = None if bias is None else _aligned(bias, query)
    if by == "flash":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, scale=1.0)[:2]
    elif by == "efficient":
        out, lse = torch.ops.aten._scaled_dot_product_efficient_attention(query, key, value, mask, True, scale=1.0)[:2]
        lse = lse.narrow(-1, 0, query.shape[2])  # it comes padded
    else:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=mask, scale=1.0
        )
    return Attended(out, lse.float()) if bias is None else _without_blind(out, lse.float(), bias)


def merge(one: Attended, other: Attended) -> Attended:
    """Attention to two sets of keys together. A side without keys changes nothing, to the last bit."""
    lse = torch.logaddexp(one.lse, other.lse)
    least = lse.clamp_min(LSE_FLOOR)  # so that two empty sides have weight 0, not NaN
    one_share, other_share = ((side.lse - least).exp().unsqueeze(-1) for side in (one, other))
    out = one.out.float() * one_share + other.out.float() * other_share
    return Attended(out.to(one.out.dtype), lse)


def attend_group(
    group: PieceGroup,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of a group's pieces to all their parts, ``[Hk, B, N, Dv]`` in the dtype of ``query``.

    Parameters
    ----------
    query
        ``[Hk, B, N, Dk]``, scaled; the ``N = G * R`` rows of a piece are those of one query head after the other.
    keys, values
        A layer's ``[Hk, rows, Dk]`` and ``[Hk, rows, Dv]``.
    window
        How many positions back a row sees, itself included; None: all.
    sinks
        ``[Hk * G]`` logits that take weight and give nothing.
    """
    *shared, private = group.parts  # all pieces are in the private one
    _, out, lse = _attend_part(private, group, query, keys, values, window)
    all_of = Attended(out.float(), lse)  # joined in single precision
    if sinks is not None:
        logits = sinks.float().view(len(query), 1, -1, 1).expand(-1, lse.shape[1], -1, group.queries.shape[1])
        all_of = merge(all_of, Attended(torch.zeros_like(all_of.out), logits.reshape(lse.shape)))
    for part in shared:
        members, out, lse = _attend_part(part, group, query, keys, values, window)
        joined = merge(Attended(all_of.out[:, members], all_of.lse[:, members]), Attended(out, lse))
        all_of.out[:, members], all_of.lse[:, members] = joined
    return all_of.out.to(query.dtype)


def _attend_part(
    part: KeySet, group: PieceGroup, query: Tensor, keys: Tensor, values: Tensor, window: int | None
) -> tuple[slice | Tensor, Tensor, Tensor]:
    """Which pieces are in a part, and what they got from it: ``[Hk, members, N, Dv]`` and ``[Hk, members, N]``."""
    heads, _, n, _ = query.shape
    q = query[:, part.pieces].reshape(heads, part.sets, -1, query.shape[-1])  # [Hk, C, P * N, Dk]
    k, v = (gather(t, part.slots).reshape(heads, part.sets, -1, t.shape[-1]) for t in (keys, values))  # [Hk, C, T, D]
    bias = part.bias(window, group.queries, group.end, torch.float32)  # [C, P, 1, R, T]
    if bias is not None:
        rows = bias.expand(-1, -1, n // group.queries.shape[1], -1, -1)  # [C, P, G, R, T]
        bias = rows.reshape(part.sets, -1, rows.shape[-1])
    out, lse = attend(q, k, v, bias, by=operator_for(q, v, masked=bias is not None))
    out, lse = out.reshape(heads, -1, n, out.shape[-1]), lse.reshape(heads, -1, n)
    return (part.members, out, lse) if part.real is None else (part.members, out[:, part.real], lse[:, part.real])


def _by_matmul(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Attended:
    scores = query.float() @ key.float().transpose(-1, -2)  # [A, H, M, T]
    if bias is not None:
        scores = scores + bias
    lse = scores.logsumexp(-1)
    weights = (scores - lse.clamp_min(LSE_FLOOR).unsqueeze(-1)).exp()
    return Attended((weights.to(value.dtype) @ value), lse)


def _without_blind(out: Tensor, lse: Tensor, bias: Tensor) -> Attended:
    """What rows that see nothing have; the operators say 0 of both, or what is not even a number."""
    blind = bias.amax(-1) == float("-inf")  # [H, M]
    return Attended(out.masked_fill(blind.unsqueeze(-1), 0.0), lse.masked_fill(blind, float("-inf")))


def _aligned(bias: Tensor, query: Tensor) -> Tensor:
    """``bias [H, M, T]`` as operators want it: ``[A, H, M, T]`` in the dtype of ``query``, rows that start where they may."""
    width = bias.shape[-1]
    padded = F.pad(bias.to(query.dtype), (0, -width % BIAS_ALIGNMENT))
    return padded.narrow(-1, 0, width).expand(len(query), -1, -1, -1)


def _nothing(query: Tensor) -> Tensor:
    return query.new_full(query.shape[:3], float("-inf"), dtype=torch.float32)
