"""SnapKV: Li et al. 2024, https://arxiv.org/abs/2404.14469. What the last rows looked at, with its neighbours, stays."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field, field_validator

from rksc_tot.core.errors import CompressionError
from rksc_tot.policies.compression.base import Floats, Kept, PathPolicy, Sets, View
from rksc_tot.policies.compression.selection import highest


class SnapKV(PathPolicy):
    """The tokens that got most attention from the rows computed since the last selection, smoothed over their neighbours.

    The paper's selects once, after the prompt; here it selects whenever a path has grown, by the attention of the rows that
    it has grown by, ``recent`` or more of them. Neighbours are those in the view, whatever has gone from between them. The
    paper's keeps no prompt but by its score: that is ``pin_prompt=False``.

    Parameters
    ----------
    sets
        ``head``: by the attention of each layer and KV head, as in the paper. ``one``: by the mean of all.
    kernel
        How many neighbours, itself included, a token's score is the mean of; odd, and at either end as many as there are.
        Published code has 5.
    """

    name: ClassVar[str] = "snapkv"
    sets: Sets = Field("head", description="tokens of their own for each layer and KV head, or one set for all")
    kernel: int = Field(5, ge=1, description="neighbours whose mean a score is; odd")

    @field_validator("kernel")
    @classmethod
    def _odd(cls, kernel: int) -> int:
        if kernel % 2 == 0:
            raise ValueError("it must be odd, as many before a token as after it")
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
    """Each of ``[..., n]`` and its neighbours as their mean, of no more than there are: an end is no zero."""
    n = scores.shape[-1]
    return _sums(scores.astype(np.float64), kernel) / _sums(np.ones(n), kernel)


def _sums(values: Floats, kernel: int) -> Floats:
    n, half = values.shape[-1], kernel // 2
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(half, half)])
    sums: Floats = np.sum([padded[..., at : at + n] for at in range(kernel)], axis=0)
    return sums
