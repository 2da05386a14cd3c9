"""How a budget is kept: what may still be done, what is cut, when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from rksc_tot.budget import Budget, BudgetReached
from rksc_tot.engine.base import Account
from rksc_tot.ledger import Ledger

T = TypeVar("T")


class Limits:
    """A budget, the account that is held against it, and the word on whether it has cut anything.

    Parameters
    ----------
    budget : Budget
    ledger : Ledger
        Whose counters are compared with the budget.
    on_cut : callable
        Called with the reason when the budget first cuts something.
    """

    def __init__(self, budget: Budget, ledger: Ledger, on_cut: Callable[[str], None]) -> None:
        deadline = None if budget.seconds is None else time.perf_counter() + budget.seconds
        self.budget = budget
        self.ledger = ledger
        self.account = Account(ledger, budget.tokens, deadline)
        self.stopped: str | None = None
        self._on_cut = on_cut

    @property
    def seconds_left(self) -> float | None:
        """Until the deadline, may be negative; None without one."""
        return None if self.account.deadline is None else self.account.deadline - time.perf_counter()

    def late(self) -> bool:
        """Whether the deadline has passed."""
        left = self.seconds_left
        return left is not None and left <= 0

    @property
    def room(self) -> bool:
        """Whether one more node may be added."""
        return self.budget.nodes is None or self.ledger.nodes < self.budget.nodes

    def admit_draws(self, wanted: Sequence[tuple[T, int]]) -> list[tuple[T, int]]:
        """As many of the wanted draws, first come first served, as could all become nodes."""
        if self.late():
            self.stop("seconds")
        if self.account.tokens_left is not None and self.account.tokens_left <= 0:
            self.stop("tokens")
        if self.budget.nodes is None:
            return list(wanted)
        left, admitted = self.budget.nodes - self.ledger.nodes, []
        if left <= 0:
            self.stop("nodes")
        for what, count in wanted:
            granted = min(count, left)
            left -= granted
            if granted:
                admitted.append((what, granted))
            if granted < count:
                self.cut("nodes")
        return admitted

    def admit_calls(self, wanted: Sequence[T], *, free: bool) -> list[T]:
        """As many of the wanted verifier calls as there are left; they are booked at once, so that none overdraws."""
        if self.late():
            self.stop("seconds")
        if free:
            return list(wanted)
        admitted = list(wanted)
        if self.budget.verifier_calls is not None:
            left = self.budget.verifier_calls - self.ledger.verifier_calls
            if left <= 0:
                self.stop("verifier_calls")
            if left < len(wanted):
                self.cut("verifier_calls")
                admitted = admitted[:left]
        self.ledger.verifier_calls += len(admitted)
        return admitted

    def cut_short(self) -> None:
        """Say that an engine or a verifier had to end early: out of seconds or out of tokens."""
        self.cut("seconds" if self.late() else "tokens")

    def cut(self, limit: str) -> None:
        """Note that a limit kept something from being done."""
        if self.stopped is None:
            self.stopped = self._reason(limit)
            self._on_cut(self.stopped)

    def stop(self, limit: str) -> NoReturn:
        """Raise BudgetReached: nothing may be done any more."""
        self.cut(limit)
        raise BudgetReached(self._reason(limit))

    def _reason(self, limit: str) -> str:
        return f"the budget of {getattr(self.budget, limit):g} {limit.replace('_', ' ')} is used up"
