"""The account of a search, and the totals of an engine."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from rksc_tot.core.ledger import Ledger


@dataclass(slots=True)
class Account:
    """The ledger of a search and its limits in the engine. A limit of None means no limit.

    Attributes
    ----------
    ledger
        Counts tokens, passes and KV.
    tokens_left
        Tokens that may still be sampled.
    deadline
        Time (``perf_counter``) after which no forward pass starts.
    kv_bytes
        Most bytes of KV that may be resident on this account.
    kv_rows
        Tokens that are resident on this account; set by the engine.
    run
        The account of a run of many searches; sampled tokens are taken from it as well.
    kv_short
        Whether ``kv_bytes`` cut work short; set by the engine.
    reserved
        Tokens that were set aside by :meth:`reserve`.
    spends_reserve
        Whether sampled tokens are taken from ``reserved`` only.
    """

    ledger: Ledger = field(default_factory=Ledger)
    tokens_left: int | None = None
    deadline: float | None = None
    kv_bytes: int | None = None
    kv_rows: int = 0
    run: Account | None = None
    kv_short: bool = False
    reserved: int = 0
    spends_reserve: bool = False

    @property
    def limited(self) -> bool:
        """Whether the number of tokens that may be sampled is limited."""
        return self.tokens_left is not None or (self.run is not None and self.run.limited)

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.perf_counter() >= self.deadline

    def kv_tokens(self, size: int) -> int | None:
        """Most tokens of ``size`` bytes that may be resident on this account; None: no limit."""
        return None if self.kv_bytes is None else self.kv_bytes // size

    def draws_on(self, account: Account) -> bool:
        """Whether tokens taken from this account are taken from ``account`` too."""
        return self is account or (self.run is not None and self.run.draws_on(account))

    @property
    def available(self) -> float:
        """Tokens that may be taken now; infinite without a limit."""
        if self.spends_reserve:
            return self.reserved
        return min(
            math.inf if self.tokens_left is None else self.tokens_left,
            math.inf if self.run is None else self.run.available,
        )

    def take(self, wanted: int) -> int:
        """Book up to ``wanted`` sampled tokens; returns how many were granted."""
        granted = int(max(0, min(wanted, self.available)))
        if self.spends_reserve:
            self.reserved -= granted
        else:
            self._lower(granted)
        account: Account | None = self
        while account is not None:
            account.ledger.tokens_sampled += granted
            account = account.run
        return granted

    def reserve(self, wanted: int) -> None:
        """Set up to ``wanted`` tokens aside, for :attr:`spends_reserve`."""
        granted = int(max(0, min(wanted, self.available)))
        self._lower(granted)
        self.reserved += granted

    def release_reserve(self) -> None:
        """Give reserved tokens back, to this account and the run's."""
        self._lower(-self.reserved)
        self.reserved, self.spends_reserve = 0, False

    def _lower(self, tokens: int) -> None:
        if self.tokens_left is not None:
            self.tokens_left -= tokens
        if self.run is not None:
            self.run._lower(tokens)


class Usage(NamedTuple):
    """The totals of an engine, over all searches.

    Attributes
    ----------
    passes
        Forward passes so far.
    rows
        Tokens computed in them.
    most_rows
        Most rows of one pass; None without a limit.
    kv_bytes
        Bytes of resident KV.
    kv_budget
        Most bytes of resident KV; None without a limit.
    waiting
        Requests without a result yet.
    """

    passes: int
    rows: int
    most_rows: int | None
    kv_bytes: int
    kv_budget: int | None
    waiting: int
