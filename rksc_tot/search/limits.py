"""Enforces a budget: what may still be done, what is cut short, when the search ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Literal, NoReturn, TypeVar, get_args

from rksc_tot.core.budget import Budget, BudgetReached
from rksc_tot.core.ledger import Ledger
from rksc_tot.engine.base import Account

T = TypeVar("T")
Limit = Literal["tokens", "nodes", "verifier_calls", "seconds", "kv_bytes"]
LIMITS: tuple[Limit, ...] = get_args(Limit)
OWN_BUDGET = "the budget"  # of one search, in reasons
DRAWN: tuple[Limit, Limit] = ("tokens", "nodes")  # a draw takes at least one of each


class Limits:
    """A budget, the account it limits, and whether it has cut anything short.

    Parameters
    ----------
    budget : Budget
    ledger : Ledger
        Its counters are compared with the budget.
    on_cut : callable
        Called with the reason when a budget first cuts something.
    run : Limits, optional
        Limits of the run of many searches that this search belongs to. Work counts in both and must be within both. Searches
        take from a shared limit first come, first served.
    name : str
        The name of the budget in reasons.
    """

    def __init__(
        self,
        budget: Budget,
        ledger: Ledger,
        on_cut: Callable[[str], None] = lambda reason: None,
        run: Limits | None = None,
        name: str = OWN_BUDGET,
    ) -> None:
        self.budget = budget
        self._name = name
        self.ledger = ledger
        self.run = run
        now = time.perf_counter()
        self._deadline = math.inf if budget.seconds is None else now + budget.seconds
        earliest = min(each._deadline for each in self._both)
        deadline = None if earliest == math.inf else earliest
        self.account: Account = Account(
            ledger,
            tokens_left=budget.tokens,
            deadline=deadline,
            kv_bytes=budget.kv_bytes,
            run=None if run is None else run.account,
        )
        self.stopped: str | None = None
        self._ended: str | None = None
        self._scored_in_part = False
        self._on_cut = on_cut

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the deadline, may be negative; None without one."""
        return None if self.account.deadline is None else self.account.deadline - time.perf_counter()

    def late(self) -> bool:
        """Whether the deadline has passed."""
        left = self.seconds_left
        return left is not None and left <= 0

    @property
    def short(self) -> bool:
        """Whether the engine could not do everything: the deadline has passed, or the KV may not grow."""
        return self.late() or self.account.kv_short

    def left(self, limit: Limit) -> float:
        """How much of a limit is left, of this budget alone; infinite without a limit."""
        if limit == "tokens":
            return math.inf if self.account.tokens_left is None else self.account.tokens_left
        if limit == "seconds":
            return self._deadline - time.perf_counter()
        if limit == "kv_bytes":
            return 0 if self.account.kv_short else math.inf
        most = getattr(self.budget, limit)
        return math.inf if most is None else most - getattr(self.ledger, limit)

    def reason(self, limit: Limit) -> str:
        """The sentence for a limit of this budget that is used up."""
        amount, unit = getattr(self.budget, limit), limit.replace("_", " ").replace("kv", "KV")
        said = f"{str(amount).removesuffix('.0')} {unit.removesuffix('s') if amount == 1 else unit}"
        return f"{self._name} of {said} is used up"

    def used_up(self) -> str | None:
        """Why nothing more may be done; None while every limit has something left."""
        return next((self.reason(limit) for limit in LIMITS if self.left(limit) <= 0), None)

    # -- asking leave ------------------------------------------------------------------------------------------------

    def admit_node(self) -> bool:
        """Book one more node, and cut it if there is no room for it."""
        if self._left("nodes") <= 0:
            self.cut("nodes")
            return False
        for each in self._both:
            each.ledger.nodes += 1
        return True

    def admit_draws(self, wanted: Sequence[tuple[T, int]]) -> list[tuple[T, int]]:
        """As many of the wanted draws, first come first served, as could all become nodes; none after scores were cut.

        Searches that share a limit do not set anything aside for each other: :meth:`admit_node` has the last word.
        """
        self._check()
        scarce = min(DRAWN, key=self._left)
        left = self._left(scarce)
        if left <= 0:
            self.stop(scarce)
        if self._scored_in_part:
            self.stop("verifier_calls")
        if left == math.inf:
            return list(wanted)
        admitted = []
        for what, count in wanted:
            granted = min(count, int(left))
            left -= granted
            if granted:
                admitted.append((what, granted))
            if granted < count:
                self.cut(scarce)
        return admitted

    def admit_calls(self, wanted: Sequence[T], *, free: bool) -> list[T]:
        """As many of the wanted verifier calls as there are left; they are booked at once, so that none overdraws."""
        self._check()
        if free:
            return list(wanted)
        admitted = list(wanted)
        left = self._left("verifier_calls")
        if left <= 0:
            self.stop("verifier_calls")
        if left < len(wanted):
            self.cut("verifier_calls")
            self._scored_in_part = True
            admitted = admitted[: int(left)]
        for each in self._both:
            each.ledger.verifier_calls += len(admitted)
        return admitted

    # -- the end -----------------------------------------------------------------------------------------------------

    def cut_short(self) -> None:
        """Note that an engine or a verifier ended early, for want of seconds, KV or tokens."""
        self.cut("seconds" if self.late() else "kv_bytes" if self.account.kv_short else "tokens")

    def cut(self, limit: Limit) -> None:
        """Note that a limit prevented something; a limit of the run ends the run as well."""
        whose = self._whose(limit)
        reason = whose.reason(limit)
        if whose is self.run:
            whose.stopped = whose.stopped or reason
        if self.stopped is None:
            self.stopped = reason
            self._on_cut(reason)

    def stop(self, limit: Limit) -> NoReturn:
        """Raise BudgetReached: nothing more may be done."""
        self.cut(limit)
        raise BudgetReached(self._whose(limit).reason(limit))

    def end(self, reason: str) -> NoReturn:
        """Raise BudgetReached, now and at every later call: a caller wants the search to end."""
        self._ended = reason
        self.stopped = self.stopped or reason
        raise BudgetReached(reason)

    def check_ended(self) -> None:
        """Raise BudgetReached where :meth:`end` has been called."""
        if self._ended is not None:
            raise BudgetReached(self._ended)

    # -- this budget and the run's -----------------------------------------------------------------------------------

    @property
    def _both(self) -> tuple[Limits, ...]:
        return (self,) if self.run is None else (self, self.run)

    def _left(self, limit: Limit) -> float:
        return min(each.left(limit) for each in self._both)

    def _whose(self, limit: Limit) -> Limits:
        """The limits of which less is left."""
        return min(self._both, key=lambda each: each.left(limit))

    def _check(self) -> None:
        self.check_ended()
        if self.short:
            self.stop("seconds" if self.late() else "kv_bytes")
