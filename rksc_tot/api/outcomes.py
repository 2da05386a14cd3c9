"""Inputs and outputs of a run of many searches: problems with ids, their outcomes, and the running totals."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rksc_tot.api.result import Result
from rksc_tot.core.errors import RkscTotError
from rksc_tot.core.ledger import Ledger
from rksc_tot.core.plugins.user_code import UserCodeError, error_text, text_of
from rksc_tot.core.task import Task
from rksc_tot.search.limits import OWN_BUDGET

RUN_BUDGET = "the run's budget"
MOST_REASONS = 50  # counted separately for one verdict
Verdict = Literal["right", "wrong", "unchecked", "unanswered", "cut", "refused", "failed"]

SEARCHED: tuple[Verdict, ...] = (
    "right",
    "wrong",
    "unchecked",
    "unanswered",
)  # verdicts of searches that the run did not end


class Outcome(BaseModel):
    """The outcome of one problem: a ``result``, or a ``failure``.

    * ``id``: as given, else the position of the problem, from 1.
    * ``problem``: as given.
    * ``failure``: the error in one sentence. ``error``: the exception, which is not serialised. If the search had begun,
      ``error.result`` is the best result so far.
    * ``refused``: True if ``task.validate`` refused the problem.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)
    id: str | int
    problem: Any
    result: Result | None = None
    failure: str | None = None
    refused: bool = False
    error: Exception | None = Field(None, exclude=True, repr=False)

    @property
    def verdict(self) -> Verdict:
        """The outcome in one word.

        * ``right``, ``wrong``: what ``task.check`` says of the answer.
        * ``unchecked``: the task cannot check the answer.
        * ``unanswered``: the search ended without an answer.
        * ``cut``: a budget of the whole run ended the search, with or without an answer.
        * ``refused``: the task refused the problem.
        * ``failed``: the search raised an error.
        """
        if self.result is None:
            return "refused" if self.refused else "failed"
        if self.result.stopped.startswith(f"{RUN_BUDGET} "):
            return "cut"
        if self.result.answer is None:
            return "unanswered"
        return {True: "right", False: "wrong", None: "unchecked"}[self.result.correct]  # type: ignore[return-value]

    @property
    def reason(self) -> str | None:
        """Why there is no answer, in one sentence; None if there is an answer."""
        return self.failure if self.result is None else self.result.why_no_answer


@dataclass
class RunProgress:
    """Counts of the finished problems by verdict.

    * ``checks``: True if the task has a ``check`` method.
    * ``verdicts``: number of problems with each verdict.
    * ``limited``: number of searches that their own budget ended.
    * ``reasons``: for the verdicts ``unanswered``, ``failed`` and ``refused``, the number of problems for each reason.
    """

    checks: bool = True
    verdicts: Counter[str] = field(default_factory=Counter)
    limited: int = 0
    reasons: dict[str, Counter[str]] = field(default_factory=dict)

    @property
    def finished(self) -> int:
        """Number of problems with an outcome, cut ones included."""
        return self.verdicts.total()

    @property
    def cut(self) -> int:
        """Number of searches that a budget of the run ended."""
        return self.verdicts["cut"]

    @property
    def done(self) -> int:
        """Number of finished problems that a resumed run skips."""
        return self.finished - self.cut

    @property
    def failed(self) -> int:
        """Number of problems whose search raised an error."""
        return self.verdicts["failed"]

    @property
    def refused(self) -> int:
        """Number of problems that the task refused."""
        return self.verdicts["refused"]

    @property
    def solved(self) -> int | None:
        """Number of right answers, without those of cut searches; None if the task has checked no answer."""
        found = self.verdicts
        told = not found["unchecked"] or found["right"] + found["wrong"] > 0
        return found["right"] if self.checks and told else None

    def count(self, verdict: str, stopped: str, reason: str | None) -> None:
        """Count one problem: its verdict, why its search stopped, and why it has no answer."""
        self.verdicts[verdict] += 1
        self.limited += stopped.startswith(f"{OWN_BUDGET} ")
        if reason is not None and verdict != "cut":
            known = self.reasons.setdefault(verdict, Counter())
            known[reason if reason in known or len(known) < MOST_REASONS else "other reasons"] += 1


@dataclass(repr=False)
class Tally(RunProgress):
    """Totals of a run so far.

    * ``total``: number of problems, None if unknown. ``started``: number of searches begun.
    * ``spent``: tokens, nodes and verifier calls of all searches, running ones included.
    * ``context_tokens``, ``context_computed``: as in :class:`~rksc_tot.core.ledger.Ledger`, summed over finished searches.
    * ``approximate``: number of finished searches with thoughts or scores on approximate KV.
    * ``stopped``: None while the run goes on, then ``finished`` or the reason why the run ended early.

    The ``repr`` leaves out unknown values and zeros, except ``solved=0``.
    """

    total: int | None = None
    started: int = 0
    spent: Ledger = field(default_factory=Ledger)
    context_tokens: int = 0
    context_computed: int = 0
    approximate: int = 0
    stopped: str | None = None

    @property
    def not_started(self) -> int | None:
        """Number of problems without a search yet, None if the total is unknown."""
        return None if self.total is None else self.total - self.started

    @property
    def prefill_saved(self) -> float:
        """Share, 0..1, of the prefill rows of a framework without a KV cache that were not computed, as in the ledger."""
        return 1 - self.context_computed / self.context_tokens if self.context_tokens else 0.0

    def add(self, outcome: Outcome) -> None:
        """Add one outcome to the totals."""
        self.count(outcome.verdict, "" if outcome.result is None else outcome.result.stopped, outcome.reason)
        if outcome.result is not None:
            self.context_tokens += outcome.result.ledger.context_tokens
            self.context_computed += outcome.result.ledger.context_computed
            self.approximate += not outcome.result.ledger.exact

    def __repr__(self) -> str:
        names = ("total", "started", "finished", "solved", "failed", "refused", "cut", "limited", "stopped")
        known = ((name, getattr(self, name)) for name in names)
        return f"Tally({', '.join(f'{name}={value!r}' for name, value in known if value or (name == 'solved' and value == 0))})"


def has_check(task: Task) -> bool:
    """Whether a task overrides ``Task.check``."""
    return getattr(task.check, "__func__", task.check) is not Task.check


def sentence_of(error: BaseException) -> str:
    """The message of an error on one line."""
    text = text_of(error) if isinstance(error, RkscTotError | UserCodeError) else error_text(error)
    return " ".join(text.split())
