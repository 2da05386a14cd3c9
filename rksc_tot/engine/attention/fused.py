"""Attention by torch's fused operators, which also return the log-sum-exp, so that parts can be merged.

Attention over several sets of keys is a weighted sum of attention over each set. With outputs ``o_i`` and log-sum-exps ``l_i`` of
the scores, ``l = log Σ exp l_i`` and ``o = Σ exp(l_i - l) o_i`` (Hydragen, arXiv 2402.05099, section 3.1). No tensor of rows
times keys is written to memory, and scores are float32 in all models.

The operator depends on the device, the dtype and the head sizes, see :func:`operator_for`. No operator has a soft-cap. All but
the last are private names of torch; the probe at load checks their results against the model's.
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
BIAS_ALIGNMENT = 16  # elements; the stride of rows of a bias is a multiple of it
LSE_FLOOR = torch.finfo(torch.float32).min


class Attended(NamedTuple):
    """The result of attention of rows to a set of keys: ``out [..., M, Dv]`` and ``lse [..., M]``, the log-sum-exp of scores in
    float32. A row that sees no key has 0 and -inf.
    """

    out: Tensor
    lse: Tensor


def operator_for(query: Tensor, value: Tensor, *, masked: bool) -> Operator:
    """Choose the operator for ``query [..., Dk]`` and ``value [..., Dv]``, with or without a bias.

    ``flash``: CUDA of compute capability 8 on, half precision, no bias, ``Dk == Dv <= 256``. ``efficient``: CUDA otherwise.
    ``cpu``: where ``Dk == Dv``. ``matmul``: two products and a softmax; for all other cases.
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
        lse = lse.narrow(-1, 0, query.shape[2])  # the operator returns padded rows
    else:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=mask, scale=1.0
        )
    return Attended(out, lse.float()) if bias is None else _without_blind(out, lse.float(), bias)


def merge(one: Attended, other: Attended) -> Attended:
    """Merge attention to two sets of keys. A side without keys changes no bit."""
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
    """Attention of a group's pieces to all parts, ``[Hk, B, N, Dv]`` in the dtype of ``query``.

    Parameters
    ----------
    query
        ``[Hk, B, N, Dk]``, scaled; the ``N = G * R`` rows of a piece are ordered by query head.
    keys, values
        A layer's ``[Hk, rows, Dk]`` and ``[Hk, rows, Dv]``.
    window
        Number of positions that a row sees, its own included; None: all.
    sinks
        ``[Hk * G]`` logits of attention sinks, which take weight but have no value.
    """
    *shared, private = group.parts  # the private part has all pieces
    _, out, lse = _attend_part(private, group, query, keys, values, window)
    all_of = Attended(out.float(), lse)  # merged in float32
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
    """The pieces of a part, and their attention to it: ``[Hk, members, N, Dv]`` and ``[Hk, members, N]``."""
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
    """Set 0 and -inf for rows that see no key; operators return 0 or NaN for both."""
    blind = bias.amax(-1) == float("-inf")  # [H, M]
    return Attended(out.masked_fill(blind.unsqueeze(-1), 0.0), lse.masked_fill(blind, float("-inf")))


def _aligned(bias: Tensor, query: Tensor) -> Tensor:
    """``bias [H, M, T]`` as operators need it: ``[A, H, M, T]`` in the dtype of ``query``, with aligned rows."""
    width = bias.shape[-1]
    padded = F.pad(bias.to(query.dtype), (0, -width % BIAS_ALIGNMENT))
    return padded.narrow(-1, 0, width).expand(len(query), -1, -1, -1)


def _nothing(query: Tensor) -> Tensor:
    return query.new_full(query.shape[:3], float("-inf"), dtype=torch.float32)
