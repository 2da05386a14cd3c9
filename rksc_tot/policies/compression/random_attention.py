"""Random Attention: Wang et al. 2026, https://arxiv.org/abs/2609.03430. The prompt stays; of the rest, what chance keeps."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from rksc_tot.policies.compression.base import Kept, PathPolicy, Sets, View
from rksc_tot.policies.compression.selection import highest


class RandomAttention(PathPolicy):
    """The prompt, and of all other tokens a uniform draw, anew in each KV head at each selection.

    The paper's score (its equation 3): infinite for the prompt, uniform on 0..1 for the rest; the highest stay. A token
    survives m selections with about the probability ((K - p) / (K + r - p))^m, where K is the budget, p the prompt and r the
    recent tokens. What was said once and never again is lost that way sooner or later.

    Parameters
    ----------
    sets
        ``head``: a draw for each layer and KV head, as in the paper. ``one``: the same for all, which it found as good on
        reasoning.
    granularity
        Runs of that many positions, counted from position 0, share a number, so that they stay or go together. The budget is
        met to the token all the same: the run that does not fit whole keeps its last tokens, one run a set and selection.
        The paper found no loss up to 64, as long as a head has more than a few runs.
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
