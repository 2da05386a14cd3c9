"""Hard limits of one search, or of a whole run of searches."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from rksc_tot.core.plugins.settings import Settings
from rksc_tot.core.sizes import kv_bytes


class Budget(Settings):
    """Hard limits, never exceeded; None means no limit.

    * ``tokens``: sampled tokens of all branches.
    * ``nodes``: nodes without the root.
    * ``verifier_calls``: scored nodes. If only part of a level can be scored, the search ends.
    * ``seconds``: wall time; no forward pass starts after it.
    * ``kv_bytes``: most resident KV of one search, a number or a string such as ``64MiB``. KV that the search no longer needs is
      evicted first; if that is not enough, the search ends. KV that was already resident for other searches is not charged, so
      this limit may depend on them.
    """

    kind = "budget"
    tokens: int | None = Field(None, ge=1)
    nodes: int | None = Field(None, ge=1)
    verifier_calls: int | None = Field(None, ge=1)
    seconds: float | None = Field(None, gt=0, allow_inf_nan=False)
    kv_bytes: Annotated[
        int | None,
        BeforeValidator(lambda size: None if size is None else kv_bytes(size, "kv_bytes"), json_schema_input_type=str),
    ] = None


class BudgetReached(Exception):
    """Raised in a strategy when a budget is used up. ``solve`` catches it and returns the best result so far."""
