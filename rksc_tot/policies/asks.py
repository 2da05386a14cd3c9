"""ASKS, attention-similarity KV sharing: Sekar 2026, https://arxiv.org/abs/2606.09937, section on ASKS.

How alike two branches are, by the hidden states of their last tokens, and when that is alike enough to share.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from rksc_tot.settings import Settings


class ASKS(Settings):
    """When a new thought becomes one with a sibling: σ ≥ τ.

    Parameters
    ----------
    tau
        τ, above 0, at most 1.
    alpha
        α of the layer weights w_l = exp(α l / L); 0 weighs all layers alike. The paper has 1.5.
    """

    kind = "ASKS"
    tau: float = Field(gt=0, le=1, allow_inf_nan=False)
    alpha: float = Field(1.5, allow_inf_nan=False)


def layer_weights(layers: int, alpha: float) -> Tensor:
    """w_l = exp(α l / L) for l = 1..L, shape ``[L]``, double precision."""
    return torch.exp(alpha * torch.arange(1, layers + 1, dtype=torch.float64) / layers)


def sigma(states: Tensor, reference: Tensor, alpha: float = 1.5) -> float:
    """σ = Σ_l w_l cos(h_l, h_l^ref) / Σ_l w_l over hidden states ``[L, H]`` of two last tokens, -1..1.

    NaN where a state is not a number or has no length: that is no reason to share.
    """
    a, b = states.double().cpu(), reference.double().cpu()
    cosines = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))  # [L]
    weights = layer_weights(len(cosines), alpha)
    return float((weights * cosines).sum() / weights.sum())
