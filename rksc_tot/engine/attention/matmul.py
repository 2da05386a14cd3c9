"""The two products of attention: queries times keys, and weights times values.

On the CPU in single precision there are two ways, MKL's batched product and oneDNN's product a set at a time, which takes about
half the time once there is much to do. Both add up one after the other, so up to :data:`~rksc_tot.engine.attention.plan.TILE` keys (or
features of a head) at a time they give the same bits, and the size decides. Above, where they do not, it is always oneDNN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rksc_tot.engine.attention.plan import TILE

MUCH = 20_000  # rows times keys of a set
MANY_SETS = 48  # calls


def queries_times_keys(queries: Tensor, keys: Tensor, out: Tensor) -> None:
    """``out [S, M, T] = queries [S, M, D] @ keys [S, T, D]ᵀ``, which may be in higher precision."""
    if queries.shape[-1] <= TILE and _one_by_one(queries, keys.shape[1]):
        for n in range(queries.shape[0]):
            out[n] = _linear(queries[n], keys[n])
    elif out.dtype == queries.dtype:
        torch.bmm(queries, keys.transpose(1, 2), out=out)
    else:
        out.copy_(queries @ keys.transpose(1, 2))


def add_weights_times_values(out: Tensor, weights: Tensor, values: Tensor, step: int) -> None:
    """``out [S, M, D] += weights [S, M, T] @ values [S, T, D]``, ``step`` keys after the other."""
    if values.dtype.itemsize < 4:
        out += weights.to(values.dtype) @ values
        return
    one_by_one = _one_by_one(weights, min(step, weights.shape[-1])) or (step > TILE and _can_be(weights))
    for first in range(0, weights.shape[-1], step):
        part, seen = weights[..., first : first + step], values[:, first : first + step]
        if one_by_one:
            for n in range(weights.shape[0]):
                out[n] += _linear(part[n], seen[n].t())
        else:
            out.baddbmm_(part, seen)


def _one_by_one(rows: Tensor, keys: int) -> bool:
    return rows.shape[1] * keys >= MUCH and rows.shape[0] <= MANY_SETS and _can_be(rows)


def _can_be(rows: Tensor) -> bool:
    return rows.device.type == "cpu" and rows.dtype == torch.float32 and torch.backends.mkldnn.is_available()


def _linear(rows: Tensor, weight: Tensor) -> Tensor:
    """``rows [M, K] @ weight [N, K]ᵀ`` by oneDNN."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, None, "none", [], "")
    return product
