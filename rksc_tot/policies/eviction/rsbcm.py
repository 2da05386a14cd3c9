"""RSBCM, the reasoning-selective block cache manager: Sekar 2026, https://arxiv.org/abs/2606.09937, section on RSBCM.

Deep thoughts of low score are evicted first: a search will hardly visit them again.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from rksc_tot.policies.eviction.base import EvictionCandidate, EvictionPolicy


class RSBCM(EvictionPolicy):
    """Least important first, with the paper's importance ω = score / (depth + 1); then the least recently used.

    A path without a score has the ω of the nearest scored path above it; where there is none, it is most important. The cache
    evicts leaf first, so a thought is never evicted before its resident children: a shallow thought of low score does not take
    good children with it.

    The paper's scores are not negative. A negative score, such as a log-likelihood, is multiplied by depth + 1 instead:
    division would raise it towards 0, and so favour depth.

    Parameters
    ----------
    attention_weight
        The paper's abstract calls the eviction attention-weighted and gives no formula. This formula is ours; 0 turns it off.
        With weight λ and a share a of attention, a positive ω is multiplied by 1 + λ·a, and a negative ω is divided by it.
    """

    name: ClassVar[str] = "rsbcm"
    attention_weight: float = Field(0.0, ge=0, allow_inf_nan=False)

    @property
    def heeds_attention(self) -> bool:
        """Whether attention has any weight."""
        return self.attention_weight > 0

    def importance(self, score: float, depth: int, attention: float = 0.0) -> float:
        """ω of a thought (see the class); infinite scores stay infinite."""
        heed = 1 + self.attention_weight * attention
        return score / (depth + 1) * heed if score >= 0 else score * (depth + 1) / heed

    def order(self, candidate: EvictionCandidate) -> tuple[float, ...]:
        return (candidate.importance, candidate.last_used)
