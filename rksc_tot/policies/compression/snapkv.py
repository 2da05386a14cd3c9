"""SnapKV: Li et al. 2024, https://arxiv.org/abs/2404.14469. Keeps the tokens with the most attention from recent rows."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field, field_validator

from rksc_tot.core.errors import CompressionError
from rksc_tot.policies.compression.base import Floats, Kept, PathPolicy, Sets, View
from rksc_tot.policies.compression.selection import highest


class SnapKV(PathPolicy):
    """Keeps the tokens with the most attention from the rows computed since the last selection, averaged over neighbours.

    The paper selects once, after the prompt. Here each selection uses the attention of the ``recent`` or more rows that the
    path has grown by. Neighbours are adjacent tokens in the view, also if tokens between them were dropped. The paper does not
    pin the prompt: set ``pin_prompt=False`` for that.

    Parameters
    ----------
    sets
        ``head``: by the attention of each layer and KV head, as in the paper. ``one``: by the mean of all heads.
    kernel
        Number of neighbours, the token included, that are averaged; odd. At the ends only existing neighbours count. The
        published code uses 5.
    """

    name: ClassVar[str] = "snapkv"
    sets: Sets = Field("head", description="tokens of their own for each layer and KV head, or one set for all")
    kernel: int = Field(5, ge=1, description="neighbours that are averaged, an odd number")

    @field_validator("kernel")
    @classmethod
    def _odd(cls, kernel: int) -> int:
        if kernel % 2 == 0:
            raise ValueError("it must be odd: as many neighbours before a token as after it")
        return kernel

    @property
    def heeds_attention(self) -> bool:
        return True

    @property
    def per_head(self) -> bool:
        return self.sets == "head"

    def select(self, view: View, budget: int, rng: np.random.Generator) -> Kept:
        if view.attention is None:
            raise CompressionError(f"{self.kind} {self.name!r} needs attention, which was not measured")
        attention = view.attention if self.per_head else view.attention.mean((0, 1))
        return highest(smoothed(attention, self.kernel), budget, self.pinned(view))


def smoothed(scores: Floats, kernel: int) -> Floats:
    """The mean of each score and its neighbours, ``[..., n]``; at the ends over existing neighbours only."""
    n = scores.shape[-1]
    return _sums(scores.astype(np.float64), kernel) / _sums(np.ones(n), kernel)


def _sums(values: Floats, kernel: int) -> Floats:
    n, half = values.shape[-1], kernel // 2
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(half, half)])
    sums: Floats = np.sum([padded[..., at : at + n] for at in range(kernel)], axis=0)
    return sums
