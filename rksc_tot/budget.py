"""Hard limits of one search."""

from __future__ import annotations

from pydantic import Field

from rksc_tot.settings import Settings


class Budget(Settings):
    """Limits that are never exceeded by one; None means no limit.

    ``tokens``: sampled tokens of all branches. ``nodes``: nodes beside the root. ``verifier_calls``: nodes scored;
    where only some of a level can be, the search ends there, since thoughts without scores cannot be told apart. ``seconds``:
    wall time; no forward pass starts after it.
    """

    kind = "budget"
    tokens: int | None = Field(None, ge=1)
    nodes: int | None = Field(None, ge=1)
    verifier_calls: int | None = Field(None, ge=1)
    seconds: float | None = Field(None, gt=0, allow_inf_nan=False)


class BudgetReached(Exception):
    """Raised inside a strategy when nothing more may be done; ``solve`` catches it and returns the best so far."""
