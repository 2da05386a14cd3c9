"""The result of one search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from rksc_tot.core.ledger import Ledger
from rksc_tot.core.tree import ReasoningTree

FINISHED = "finished"
ADVICE = "check_task(task, problem, engine) shows what the model writes and what the task makes of it"


class Result(BaseModel):
    """What a search found.

    * ``problem``: as it was given if that was a string, else the task's own form of it as text.
    * ``answer``: of the best complete path, None if there is none; :attr:`why_no_answer` then has the reason.
    * ``correct``: whether the task's own check accepts the answer, None if the task cannot tell.
    * ``best``: id of the node the answer is read from, or of the best unfinished node. ``path``: its thoughts.
    * ``stopped``: ``finished``, or what ended the search before, or why no path was complete.
    * ``rejections``: how many thoughts were rejected, or ended a path without an answer, for each reason: the ten commonest
      reasons, the commonest first.
    * ``settings``: task, strategy, verifier, sampling, budget, seed, and under ``rksc`` the approximations.
    * ``numerics``: what the figures depend on besides: model, dtype, device, versions.
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

    @property
    def why_no_answer(self) -> str | None:
        """The main reason why there is no answer; None where there is one."""
        return None if self.answer is not None else main_reason(self.stopped, self.rejections)

    @property
    def advice(self) -> str | None:
        """What to do about a missing answer; None where there is one, and where :attr:`why_no_answer` ends with it."""
        if self.answer is not None or " - " in self.stopped:
            return None
        return ADVICE if self.stopped == FINISHED else "raise the limit that stopped the search, or leave it out"


def main_reason(stopped: str, rejections: Mapping[str, int]) -> str:
    """Why a search has no answer: what stopped it, else the commonest reason for which it rejected thoughts."""
    if stopped != FINISHED:
        return stopped
    return max(rejections, key=lambda reason: rejections[reason], default="no path was complete")
