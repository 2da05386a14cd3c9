"""Random Attention: Wang et al. 2026, https://arxiv.org/abs/2609.03430. Keeps the prompt and a random set of tokens."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from rksc_tot.policies.compression.base import Kept, PathPolicy, Sets, View
from rksc_tot.policies.compression.selection import highest


class RandomAttention(PathPolicy):
    """Keeps the prompt and a uniform random sample of all other tokens, drawn for each KV head at each selection.

    Equation 3 of the paper: the score is infinite for the prompt and uniform on 0..1 for other tokens; the highest stay. A
    token survives m selections with probability about ((K - p) / (K + r - p))^m, with budget K, p prompt tokens and r recent
    tokens. So every token outside the prompt is lost eventually.

    Parameters
    ----------
    sets
        ``head``: a sample for each layer and KV head, as in the paper. ``one``: the same sample for all, which the paper found
        equally good on reasoning.
    granularity
        Runs of that many positions, counted from position 0, share a score and stay or go together. The budget is still met
        exactly: one run keeps only its last tokens. The paper found no loss up to 64 if a head has more than a few runs.
    """

    name: ClassVar[str] = "random_attention"
    sets: Sets = Field("head", description="tokens of their own for each layer and KV head, or one set for all")
    granularity: int = Field(1, ge=1, description="positions that stay or go together")

    @property
    def per_head(self) -> bool:
        return self.sets == "head"

    def select(self, view: View, budget: int, rng: np.random.Generator) -> Kept:
        scores = rng.random((view.layers, view.heads, len(view)) if self.per_head else len(view))
        if self.granularity > 1:
            at = view.positions // self.granularity
            run = np.cumsum(np.diff(at, axis=-1, prepend=at[..., :1]) != 0, axis=-1)  # numbered from 0 in each set
            scores = np.take_along_axis(scores, np.broadcast_to(run, scores.shape), -1)
        return highest(scores, budget, self.pinned(view))
