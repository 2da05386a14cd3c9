"""Enforces the budget of a search between engine calls: nodes, verifier calls, tokens, seconds, KV.

Within an engine call, the scheduler ends work at the deadline and the limits of the :class:`~rksc_tot.engine.base.Account`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NoReturn, TypeVar, get_args

from rksc_tot.core.budget import Budget, BudgetReached
from rksc_tot.core.ledger import Ledger
from rksc_tot.engine.base import Account

T = TypeVar("T")
Limit = Literal["tokens", "nodes", "verifier_calls", "seconds", "kv_bytes"]
LIMITS: tuple[Limit, ...] = get_args(Limit)
OWN_BUDGET = "the budget"  # name of the budget of one search, in reasons
PER_THOUGHT: tuple[Limit, Limit] = ("tokens", "nodes")  # each generated thought needs at least one of each


class Limits:
    """A budget, the account that it limits, and the first limit that was reached.

    Parameters
    ----------
    budget : Budget
    ledger : Ledger
        The counters that are compared with the budget.
    on_cut : callable
        Called once, with the reason, when a limit is first reached.
    run : Limits, optional
        Limits of the run of many searches that this search belongs to. Work counts towards both budgets and must fit both.
        Searches take from a shared limit first come, first served.
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
        self._reserves = False
        self._reserved_nodes = 0  # of this budget, for all searches
        self._on_cut = on_cut

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the deadline, negative after it; None without a deadline."""
        return None if self.account.deadline is None else self.account.deadline - time.perf_counter()

    def late(self) -> bool:
        """Whether the deadline has passed."""
        left = self.seconds_left
        return left is not None and left <= 0

    @property
    def short(self) -> bool:
        """Whether the engine may leave work undone: the deadline has passed, or the KV may not grow."""
        return self.late() or self.account.kv_short

    @property
    def out_of_tokens(self) -> bool:
        """Whether no more tokens may be sampled."""
        return self._left("tokens") <= 0

    def left(self, limit: Limit) -> float:
        """The rest of a limit of this budget alone; infinite without a limit."""
        if limit == "tokens":
            return math.inf if self.account.tokens_left is None else self.account.tokens_left
        if limit == "seconds":
            return self._deadline - time.perf_counter()
        if limit == "kv_bytes":
            return 0 if self.account.kv_short else math.inf
        most = getattr(self.budget, limit)
        reserved = self._reserved_nodes if limit == "nodes" else 0
        return math.inf if most is None else most - getattr(self.ledger, limit) - reserved

    def reason(self, limit: Limit) -> str:
        """The reason to report for a limit that is used up."""
        amount, unit = getattr(self.budget, limit), limit.replace("_", " ").replace("kv", "KV")
        text = f"{str(amount).removesuffix('.0')} {unit.removesuffix('s') if amount == 1 else unit}"
        return f"{self._name} of {text} is used up"

    def used_up(self) -> str | None:
        """The reason of the first limit that is used up, None if there is none."""
        return next((self.reason(limit) for limit in LIMITS if self.left(limit) <= 0), None)

    # -- admission ---------------------------------------------------------------------------------------------------

    def admit_node(self) -> bool:
        """Count one more node. Returns False, and counts nothing, if the limit of nodes is reached."""
        if self._left("nodes") <= 0:
            self.cut("nodes")
            return False
        for each in self._both:
            each.ledger.nodes += 1
        return True

    def admit_thoughts(self, wanted: Sequence[tuple[T, int]]) -> list[tuple[T, int]]:
        """The thoughts that may be generated, first come first served: as many as there are nodes or tokens left.

        Nothing is reserved, as searches share limits: :meth:`admit_node` decides on each node. Raises BudgetReached if
        nothing is left, or if verifier calls were cut before.
        """
        self._check()
        scarce = min(PER_THOUGHT, key=self._left)
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
        """The verifier calls that may be made. They are counted at once, so that concurrent searches stay within the limit."""
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

    # -- the reserve for a last closing ------------------------------------------------------------------------------

    def reserve(self, tokens: int) -> bool:
        """Set tokens and one node aside, as far as they are left, so that the search can end with a closing.

        Returns whether there are a node and at least one token.
        """
        self.account.reserve(tokens)
        if self._left("nodes") > 0:
            self._reserve_node(1)
        return self._reserves and self.account.reserved > 0

    @contextmanager
    def spending_reserve(self) -> Iterator[None]:
        """In the block, tokens and nodes come from the reserve."""
        self._reserve_node(-1)
        self.account.spends_reserve = True
        try:
            yield
        finally:
            self.release_reserve()

    def release_reserve(self) -> None:
        """Give the rest of the reserve back. A second call does nothing."""
        self._reserve_node(-1)
        self.account.release_reserve()

    def _reserve_node(self, nodes: int) -> None:
        if self._reserves == (nodes > 0):
            return
        self._reserves = nodes > 0
        for each in self._both:
            each._reserved_nodes += nodes

    # -- ending ------------------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether :meth:`end` was called."""
        return self._ended is not None

    def cut_short(self) -> None:
        """Note that the engine or a verifier ended early, for lack of seconds, KV or tokens."""
        self.cut("seconds" if self.late() else "kv_bytes" if self.account.kv_short else "tokens")

    def cut(self, limit: Limit) -> None:
        """Note that a limit prevented some work. A limit of the run ends the run too."""
        tighter = self._tighter(limit)
        reason = tighter.reason(limit)
        if tighter is self.run:
            tighter.stopped = tighter.stopped or reason
        if self.stopped is None:
            self.stopped = reason
            self._on_cut(reason)

    def stop(self, limit: Limit) -> NoReturn:
        """Raise BudgetReached for this limit."""
        self.cut(limit)
        raise BudgetReached(self._tighter(limit).reason(limit))

    def end(self, reason: str) -> NoReturn:
        """Raise BudgetReached now and in every later call, at a caller's request."""
        self._ended = reason
        self.stopped = self.stopped or reason
        raise BudgetReached(reason)

    def check_ended(self) -> None:
        """Raise BudgetReached if :meth:`end` was called."""
        if self._ended is not None:
            raise BudgetReached(self._ended)

    # -- this budget and the run's -----------------------------------------------------------------------------------

    @property
    def _both(self) -> tuple[Limits, ...]:
        return (self,) if self.run is None else (self, self.run)

    def _left(self, limit: Limit) -> float:
        return min(each.left(limit) for each in self._both)

    def _tighter(self, limit: Limit) -> Limits:
        """The limits, this search's or the run's, with less left."""
        return min(self._both, key=lambda each: each.left(limit))

    def _check(self) -> None:
        self.check_ended()
        if self.short:
            self.stop("seconds" if self.late() else "kv_bytes")
