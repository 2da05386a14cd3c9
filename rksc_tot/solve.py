"""The front door: ``solve`` and ``asolve``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from rksc_tot.ledger import Ledger
from rksc_tot.tree import ReasoningTree


class Result(BaseModel):
    """What a search found.

    ``answer``: of the best complete path, None if there is none. ``correct``: the task's own check of it, None if the task
    cannot tell. ``best``: id of the node the answer is read from, or of the best unfinished node. ``path``: its thoughts.
    ``stopped``: ``finished``, or which budget ended the search. ``settings``: strategy, verifier, sampling, seed.
    ``numerics``: what the figures depend on besides (dtype, device, versions).
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)
    problem: str
    answer: str | None
    correct: bool | None
    best: int
    path: list[str]
    stopped: str
    tree: ReasoningTree
    ledger: Ledger
    settings: Mapping[str, Any]
    numerics: Mapping[str, Any]
