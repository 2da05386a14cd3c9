"""The result of one search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from rksc_tot.core.ledger import Ledger
from rksc_tot.core.tree import ReasoningTree


class Result(BaseModel):
    """What a search found.

    ``problem``: as it was given if that was a string, else the task's own form of it as text. ``answer``: of the best
    complete path, None if there is none. ``correct``: the task's own check of it, None if the task cannot tell. ``best``: id
    of the node the answer is read from, or of the best unfinished node. ``path``: its thoughts. ``stopped``: ``finished``,
    or what ended the search before. ``rejections``: how many thoughts were turned away for each reason, the ten commonest,
    the commonest first. ``settings``: strategy, verifier, sampling, seed, and under ``rksc`` what might be decided early.
    ``numerics``: what the figures depend on besides (dtype, device, versions).
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, ser_json_inf_nan="strings")
    problem: str
    answer: str | None
    correct: bool | None
    best: int
    path: list[str]
    stopped: str
    tree: Annotated[
        ReasoningTree,
        PlainSerializer(ReasoningTree.to_records, when_used="json"),
        BeforeValidator(lambda tree: ReasoningTree.from_records(tree) if isinstance(tree, list) else tree),
    ]
    ledger: Ledger
    rejections: dict[str, int]
    settings: Mapping[str, Any]
    numerics: Mapping[str, Any]
