"""What a run of many searches takes and gives: problems with a name, their outcomes, and the sum of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rksc_tot.api.result import Result
from rksc_tot.core.errors import ConfigError, RkscTotError
from rksc_tot.core.ledger import Ledger
from rksc_tot.core.plugins.user_code import UserCodeError, named, said, shown
from rksc_tot.core.task import Task
from rksc_tot.search.limits import OWN_BUDGET

RUN_BUDGET = "the run's budget"
MOST_REASONS = 50  # of one verdict that are told apart
Verdict = Literal["right", "wrong", "unchecked", "unanswered", "cut", "refused", "failed"]

SEARCHED: tuple[Verdict, ...] = ("right", "wrong", "unchecked", "unanswered")  # to the search's own end


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem with a name of its own, a text or a whole number, for :func:`solve_many`."""

    problem: Any
    id: str | int

    def __post_init__(self) -> None:
        """Refuse what is no name."""
        given: object = self.id
        if not isinstance(given, str | int) or isinstance(given, bool):
            raise ConfigError(f"the id {shown(given)} is no name", hint="give a text or a whole number")


class Outcome(BaseModel):
    """What became of one problem: a ``result``, or a ``failure`` in one sentence and the ``error`` behind it.

    ``id``: as given, else the problem's place, from 1 on. ``problem``: as given. ``error`` is not serialised; where the
    search had begun, ``error.result`` is its best so far. ``refused``: whether the task would not take the problem.
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
        """The one way it came out.

        ``right`` or ``wrong``: by the task's check; ``unchecked``: it did not tell; ``unanswered``: the search ended without an
        answer; ``cut``: a budget of the whole run ended it, whatever it had so far; ``refused``: by the task; ``failed``.
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
        """Why there is no answer, in a sentence; None where there is one."""
        return self.failure if self.result is None else self.result.why_no_answer


@dataclass
class RunProgress:
    """How problems came out, each in one way.

    * ``checks``: whether the task has a check at all.
    * ``verdicts``: how many problems there are of each verdict.
    * ``limited``: searches that their own budget ended.
    * ``reasons``: how many problems have no answer for each reason, by verdict (``unanswered``, ``failed``, ``refused``).
    """

    checks: bool = True
    verdicts: Counter[str] = field(default_factory=Counter)
    limited: int = 0
    reasons: dict[str, Counter[str]] = field(default_factory=dict)

    @property
    def finished(self) -> int:
        """Problems with an outcome, those that were cut included."""
        return self.verdicts.total()

    @property
    def cut(self) -> int:
        """Searches that a budget of the run ended."""
        return self.verdicts["cut"]

    @property
    def done(self) -> int:
        """Problems that need not be done again."""
        return self.finished - self.cut

    @property
    def failed(self) -> int:
        """Problems that ended with an error."""
        return self.verdicts["failed"]

    @property
    def refused(self) -> int:
        """Problems the task would not take."""
        return self.verdicts["refused"]

    @property
    def solved(self) -> int | None:
        """Right answers, what a cut search had so far not included; None where the task has checked no answer."""
        found = self.verdicts
        told = not found["unchecked"] or found["right"] + found["wrong"] > 0
        return found["right"] if self.checks and told else None

    def count(self, verdict: str, stopped: str, reason: str | None) -> None:
        """Count a problem by its verdict, by what ended its search, and by why it has no answer."""
        self.verdicts[verdict] += 1
        self.limited += stopped.startswith(f"{OWN_BUDGET} ")
        if reason is not None and verdict != "cut":
            known = self.reasons.setdefault(verdict, Counter())
            known[reason if reason in known or len(known) < MOST_REASONS else "other reasons"] += 1


@dataclass(repr=False)
class Tally(RunProgress):
    """What a run has come to so far; its ``repr`` has what is known, and of the zeros only that none was solved.

    ``total``: problems, None where that is not known. ``started``: searches begun; ``finished``: handed out as outcomes, see
    :class:`RunProgress`. ``spent``: tokens, nodes and verifier calls of all searches, running ones included. ``context_tokens``,
    ``context_computed``: as in :class:`~rksc_tot.core.ledger.Ledger`, of the finished. ``approximate``: of these, how many have
    thoughts or scores on approximate KV. ``stopped``: None while it runs, then ``finished`` or why it ended before.
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
        """Problems no search was begun for, None where that is not known."""
        return None if self.total is None else self.total - self.started

    @property
    def prefill_saved(self) -> float:
        """Share of the prefill of a re-prefilling framework that was not computed, 0..1, as in the ledger of one search."""
        return 1 - self.context_computed / self.context_tokens if self.context_tokens else 0.0

    def add(self, outcome: Outcome) -> None:
        """Count an outcome."""
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
    """Whether a task can tell right answers from wrong ones."""
    return getattr(task.check, "__func__", task.check) is not Task.check


def sentence_of(error: BaseException) -> str:
    """What an error says, on one line."""
    text = said(error) if isinstance(error, RkscTotError | UserCodeError) else named(error)
    return " ".join(text.split())
