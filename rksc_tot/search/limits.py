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
        self._ended: str | None = None
        self._scored_in_part = False
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
        """As many of the wanted draws, first come first served, as could all become nodes; none after scores were cut."""
        self._check_time()
        nodes = None if self.budget.nodes is None else self.budget.nodes - self.ledger.nodes
        rooms = {"tokens": self.account.tokens_left, "nodes": nodes}  # a draw takes at least one of each
        left, scarce = min(((room, limit) for limit, room in rooms.items() if room is not None), default=(None, ""))
        if left is not None and left <= 0:
            self.stop(scarce)
        if self._scored_in_part:
            self.stop("verifier_calls")
        if left is None:
            return list(wanted)
        admitted = []
        for what, count in wanted:
            granted = min(count, left)
            left -= granted
            if granted:
                admitted.append((what, granted))
            if granted < count:
                self.cut(scarce)
        return admitted

    def admit_calls(self, wanted: Sequence[T], *, free: bool) -> list[T]:
        """As many of the wanted verifier calls as there are left; they are booked at once, so that none overdraws."""
        self._check_time()
        if free:
            return list(wanted)
        admitted = list(wanted)
        if self.budget.verifier_calls is not None:
            left = self.budget.verifier_calls - self.ledger.verifier_calls
            if left <= 0:
                self.stop("verifier_calls")
            if left < len(wanted):
                self.cut("verifier_calls")
                self._scored_in_part = True
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

    def end(self, reason: str) -> NoReturn:
        """Raise BudgetReached, now and at whatever is tried after it: somebody outside wants the search to end."""
        self._ended = reason
        self.stopped = self.stopped or reason
        raise BudgetReached(reason)

    def check_ended(self) -> None:
        """Raise BudgetReached where :meth:`end` has been called."""
        if self._ended is not None:
            raise BudgetReached(self._ended)

    def _check_time(self) -> None:
        self.check_ended()
        if self.late():
            self.stop("seconds")

    def _reason(self, limit: str) -> str:
        amount, unit = getattr(self.budget, limit), limit.replace("_", " ")
        return f"the budget of {str(amount).removesuffix('.0')} {unit.removesuffix('s') if amount == 1 else unit} is used up"
