"""Hard limits of one search, or of a whole run of searches."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from rksc_tot.core.plugins.settings import Settings
from rksc_tot.core.sizes import kv_bytes


class Budget(Settings):
    """Limits that are never exceeded by one; None means no limit.

    ``tokens``: sampled tokens of all branches. ``nodes``: nodes beside the root. ``verifier_calls``: nodes scored;
    where only some of a level can be, the search ends there, since thoughts without scores cannot be told apart. ``seconds``:
    wall time; no forward pass starts after it. ``kv_bytes``: most KV resident for one search, a number or a text such as
    ``64MiB``; what the search no longer needs goes first, and where that is not enough the search ends. KV that is resident
    already, of a search before or beside it, is not charged to it: where ``kv_bytes`` cuts may depend on the company.
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
    """Raised inside a strategy when nothing more may be done; ``solve`` catches it and returns the best so far."""
