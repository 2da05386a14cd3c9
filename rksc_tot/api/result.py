"""The result of one search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from rksc_tot.core.ledger import Ledger
from rksc_tot.core.tree import ReasoningTree

FINISHED = "finished"
ADVICE = "check_task(task, problem, engine) shows what the model writes and how the task parses it"


class Result(BaseModel):
    """The result of one search.

    * ``problem``: the given problem if it is a string, else the text of the validated problem.
    * ``answer``: the answer of the best complete path. None if there is none; :attr:`why_no_answer` then has the reason.
    * ``correct``: whether ``task.check`` accepts the answer, None if the task cannot check it.
    * ``best``: id of the node the answer is read from, or of the best unfinished node. ``path``: its thoughts.
    * ``stopped``: ``finished``, or what ended the search early, or why no path was complete.
    * ``rejections``: the ten commonest reasons why thoughts were rejected or ended a path without an answer, each with its
      count, the commonest first.
    * ``settings``: task, strategy, verifier, sampling, budget, seed, and under ``rksc`` the approximations.
    * ``numerics``: what else the numbers depend on: model, dtype, device, versions.
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
        """The main reason why there is no answer; None if there is an answer."""
        return None if self.answer is not None else main_reason(self.stopped, self.rejections)

    @property
    def advice(self) -> str | None:
        """What to do about a missing answer. None if there is an answer, or if :attr:`why_no_answer` already says it."""
        if self.answer is not None or " - " in self.stopped:
            return None
        return ADVICE if self.stopped == FINISHED else "raise or remove the limit that stopped the search"


def main_reason(stopped: str, rejections: Mapping[str, int]) -> str:
    """Why a search has no answer: what stopped it early, else the commonest reason for rejected thoughts."""
    if stopped != FINISHED:
        return stopped
    return max(rejections, key=lambda reason: rejections[reason], default="no path was complete")
