"""The base class of every job that the engine runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.engine.base import Account
from rksc_tot.engine.jobs.layer_readers import LayerQuestion
from rksc_tot.engine.jobs.sampler import NO_DRAWS, Draws, Logits


class ComputedRows(NamedTuple):
    """Rows of one segment that a pass has computed.

    Attributes
    ----------
    start
        Position of the segment's first token.
    rows
        How many there are.
    new
        How many of them are stored for the first time ever.
    """

    start: int
    rows: int
    new: int


class DraftKV(Protocol):
    """Compressed copies of paths, from which drafts are decoded (see :mod:`rksc_tot.engine.kv.speculation`)."""

    @property
    def horizon(self) -> int:
        """The most tokens of one draft."""
        ...

    def copy(self, job: Job) -> list[Segment] | None:
        """Copies of the paths to the job's tips without their last tokens, each pinned; None if there is no room for them."""
        ...


class Job:
    """Work that ends in a result or an error.

    A *running* job pins the paths to its tips: their KV stays resident. A paused job only holds its place in the tree. When room
    is short its KV may be evicted; it is computed again when the job runs on, with the same outcome.

    Attributes
    ----------
    base
        The segment at whose end the job begins.
    tips
        The segments at whose ends it stands now. A running job pins the paths to them.
    account
        The account that pays.
    payer
        The account whose resident rows are counted, because they are limited; None: no limit.
    prompt_end
        Position at which the prompt of the path ends.
    scratch_from
        Rows from this position on are dropped with the job; None: all rows stay.
    exact
        Whether the KV of the path is made exact before the job reads from it.
    audit
        Whether this is an audit on an isolated path. Results never depend on it.
    asks
        Whether its scratch rows are a verifier's question, not a proposal.
    writes
        Whether it appends tokens to its paths.
    decoding
        Whether the rows it wants now are tokens that it has sampled.
    keeps_states
        Whether it needs the hidden states of the rows that give logits.
    leaves_from
        Rows from this position on may leave a pass before the last layer; None: no row does.
    """

    asks = False
    writes = False
    decoding = False
    keeps_states = False
    leaves_from: int | None = None

    def __init__(
        self, tree: PrefixTree, base: Segment, account: Account, prompt_end: int, scratch_from: int | None = None
    ) -> None:
        self.tree = tree
        self.base = base
        self.tips: list[Segment] = []
        self.account = account
        self.payer = None if account.kv_bytes is None else account
        self.prompt_end = prompt_end
        self.scratch_from = scratch_from
        self.exact = False
        self.audit = False
        self.ended = False
        self.result: Any = None
        self.error: Exception | None = None
        self.running = False
        tree.hold(base)

    # -- logits it waits for -----------------------------------------------------------------------------------------

    def wanted(self) -> list[Segment]:
        """Segments that passes must compute next: the tips, unless draft tokens stand after them."""
        return self.tips

    def awaited(self) -> Collection[Segment]:
        """Segments at whose end it needs logits."""
        return self.tips

    def lacks(self, tip: Segment) -> bool:
        """Whether a pass must still compute what the job reads at the end of a tip."""
        return tip.logits is None or (self.exact and not tip.kv.exact) or (self.keeps_states and tip.states is None)

    def ready(self) -> list[Segment]:
        """Tips from which the job can go on now."""
        return [] if any(map(self.lacks, self.tips)) else self.tips

    # -- going on from logits ----------------------------------------------------------------------------------------

    def draws(self, ready: Collection[Segment], row: Mapping[Segment, int]) -> Draws:
        """The tokens it samples now, after ``ready`` tips. ``row``: where the logits of each are in the table."""
        return NO_DRAWS

    def advance(
        self, logits: Logits, row: Mapping[Segment, int], tokens: Sequence[int], logprobs: Sequence[float]
    ) -> None:
        """Go on from the tips that are ready, with the tokens sampled for :meth:`draws`."""
        raise NotImplementedError

    def layer_question(self, rows: range, exact: bool) -> LayerQuestion | None:
        """The question it asks between the layers of the pass that computes its tip; None: no question.

        ``rows``: those from ``leaves_from`` on; ``exact``: whether they are computed from exact KV.
        """
        return None

    def answer(self, question: LayerQuestion) -> None:
        """Take the answer to :meth:`layer_question`."""
        raise NotImplementedError

    def book(self, computed: Sequence[ComputedRows], exact: bool) -> None:
        """Book the rows that a pass has computed for it. ``exact``: whether they were computed from exact KV."""
        ledger = self.account.ledger
        ledger.compression.book_rows(sum(part.rows for part in computed), exact=exact, audit=self.audit)
        for start, rows, new in () if self.audit else computed:
            if self.scratch_from is None or start < self.scratch_from:
                ledger.book_rows(rows, new, decoded=self.decoding)
            elif self.asks:
                ledger.book_question(rows)
            else:
                ledger.book_reply(rows)

    # -- room and time -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run, or run on."""
        for tip in self.tips:
            self.tree.residency.pin(tip)
            self.tree.drop(tip)
        self.running = True

    def pause(self) -> None:
        """Allow the KV to be evicted, and keep the place."""
        for tip in self.tips:
            self.tree.hold(tip)
            self.tree.residency.unpin(tip)
        self.running = False

    def leave(self) -> None:
        """Give up all tips."""
        for tip in self.tips:
            (self.tree.residency.unpin if self.running else self.tree.drop)(tip)
        self.tips = []

    @property
    def remaining_tokens(self) -> int:
        """Tokens that it may still sample."""
        return 0

    def next_draft(self, copies: DraftKV, jobs: Sequence[Job]) -> Job | None:
        """A job that drafts its next tokens, if it is time to begin one. ``jobs``: all that run in the engine."""
        return None

    def crowd_out(self) -> bool:
        """Drop tokens that were drafted and not verified, as there is no room for them. False if there are none."""
        return False

    def expire(self) -> None:
        """End with what there is: the deadline has passed."""
        raise NotImplementedError

    def outgrow(self) -> None:
        """End with what there is: its account may hold no more KV."""
        self.account.kv_short = True
        self.expire()

    # -- the end -----------------------------------------------------------------------------------------------------

    def end(self, result: object) -> None:
        """End with a result."""
        self.ended, self.result = True, result

    def fail(self, error: Exception) -> None:
        """End with an error."""
        self.ended, self.error = True, error

    def give_back(self) -> None:
        """Drop the results: the caller has gone."""

    def close(self) -> None:
        """Let go of the tree; drop scratch rows."""
        self.leave()
        self.tree.drop(self.base)
        if self.scratch_from is not None:
            self.tree.discard(self.base, self.scratch_from)
