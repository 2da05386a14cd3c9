"""What a run of many searches takes and gives: problems with a name, their outcomes, and the sum of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rksc_tot.errors import ConfigError, RkscTotError
from rksc_tot.guard import Raised, named, said, shown
from rksc_tot.ledger import Ledger
from rksc_tot.solve import Result

RUN_BUDGET = "the run's budget"


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
    search had begun, ``error.result`` is its best so far.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)
    id: str | int
    problem: Any
    result: Result | None = None
    failure: str | None = None
    error: Exception | None = Field(None, exclude=True, repr=False)

    @property
    def cut(self) -> bool:
        """Whether a budget of the whole run ended the search."""
        return self.result is not None and self.result.stopped.startswith(RUN_BUDGET)


@dataclass
class Tally:
    """What a run has come to so far.

    ``total``: problems, None where that is not known. ``started``, ``finished``: searches begun, and handed out as outcomes;
    of these ``failed``, were ``cut`` by the run's budget, had an answer that the task could check (``checked``), had a right one
    (``solved``). ``spent``: tokens, nodes and verifier calls of all searches, running ones included. ``context_tokens``,
    ``context_computed``: as in :class:`~rksc_tot.ledger.Ledger`, of the finished. ``stopped``: None while it runs, then
    ``finished`` or why it ended before.
    """

    total: int | None = None
    started: int = 0
    finished: int = 0
    failed: int = 0
    cut: int = 0
    checked: int = 0
    solved: int = 0
    spent: Ledger = field(default_factory=Ledger)
    context_tokens: int = 0
    context_computed: int = 0
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
        self.finished += 1
        self.failed += outcome.result is None
        self.cut += outcome.cut
        if outcome.result is not None:
            self.checked += outcome.result.correct is not None
            self.solved += outcome.result.correct is True
            self.context_tokens += outcome.result.ledger.context_tokens
            self.context_computed += outcome.result.ledger.context_computed


def sentence_of(error: Exception) -> str:
    """What an error says, on one line."""
    text = said(error) if isinstance(error, RkscTotError | Raised) else named(error)
    return " ".join(text.split())
