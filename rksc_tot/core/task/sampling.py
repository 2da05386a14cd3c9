"""How thoughts are sampled: temperature, top-k, top-p and min-p, and their defaults."""

from __future__ import annotations

from pydantic import Field

from rksc_tot.core.plugins.settings import Settings


class Sampling(Settings):
    """How a token is drawn. ``temperature`` 0 is greedy; the filters apply in the order top-k, top-p, min-p."""

    kind = "sampling"
    temperature: float = Field(1.0, ge=0)
    top_k: int | None = Field(None, ge=1)
    top_p: float = Field(1.0, gt=0, le=1)
    min_p: float = Field(0.0, ge=0, le=1)


DEFAULT = Sampling()
"""Sampling from the distribution of the model."""
