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
        Number of rows.
    new
        Number of rows whose KV was never stored before.
    """

    start: int
    rows: int
    new: int


class DraftKV(Protocol):
    """Makes compressed copies of paths for drafts (see :mod:`rksc_tot.engine.kv.speculation`)."""

    @property
    def horizon(self) -> int:
        """The most tokens of one draft."""
        ...

    def copy(self, job: Job) -> list[Segment] | None:
        """Copies of the paths to the job's tips without their last tokens, each pinned; None if there is no room for them."""
        ...


class Job:
    """One unit of work, which ends with a result or an error.

    A *running* job pins the paths to its tips, so their KV stays resident. A paused job holds its segments, but their KV may be
    evicted. It is computed again when the job resumes, with the same result.

    Attributes
    ----------
    base
        The segment after which the job begins.
    tips
        The segments that end the job's paths now. A running job pins these paths.
    account
        The account that pays.
    payer
        The account that resident rows are charged to, if its KV is limited; else None.
    prompt_end
        Position of the end of the prompt.
    scratch_from
        Rows from this position on are dropped with the job; None: all rows stay.
    exact
        Whether the job needs the full KV of its path.
    audit
        Whether this is an audit on an isolated path. Results never depend on it.
    asks
        Whether scratch rows are those of a verifier's question, not of a proposal.
    writes
        Whether the job appends tokens to its paths.
    decoding
        Whether the next rows are sampled tokens.
    keeps_states
        Whether the job needs the hidden states of the rows that give logits.
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

    # -- awaited logits ----------------------------------------------------------------------------------------------

    def wanted(self) -> list[Segment]:
        """Segments that passes must compute next: the tips, or the ends of draft tokens after them."""
        return self.tips

    def awaited(self) -> Collection[Segment]:
        """Segments after which the job needs logits."""
        return self.tips

    def lacks(self, tip: Segment) -> bool:
        """Whether a pass must still compute the logits at a tip."""
        return tip.logits is None or (self.exact and not tip.kv.exact) or (self.keeps_states and tip.states is None)

    def ready(self) -> list[Segment]:
        """Tips whose logits are known and from which the job can continue."""
        return [] if any(map(self.lacks, self.tips)) else self.tips

    # -- use of logits -----------------------------------------------------------------------------------------------

    def draws(self, ready: Collection[Segment], row: Mapping[Segment, int]) -> Draws:
        """The draws after the ``ready`` tips. ``row``: row of each tip in the table of logits."""
        return NO_DRAWS

    def advance(
        self, logits: Logits, row: Mapping[Segment, int], tokens: Sequence[int], logprobs: Sequence[float]
    ) -> None:
        """Continue from the ready tips with the tokens sampled for :meth:`draws`."""
        raise NotImplementedError

    def layer_question(self, rows: range, exact: bool) -> LayerQuestion | None:
        """The question to be read between the layers of the pass that computes the tip; None: no question.

        ``rows``: the rows from ``leaves_from`` on; ``exact``: whether they are computed from exact KV.
        """
        return None

    def answer(self, question: LayerQuestion) -> None:
        """Take the answer to :meth:`layer_question`."""
        raise NotImplementedError

    def book(self, computed: Sequence[ComputedRows], exact: bool) -> None:
        """Book the rows that a pass computed for this job. ``exact``: whether they were computed from exact KV."""
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
        """Start or resume: pin the paths."""
        for tip in self.tips:
            self.tree.residency.pin(tip)
            self.tree.drop(tip)
        self.running = True

    def pause(self) -> None:
        """Unpin the paths, so that their KV may be evicted; hold the segments."""
        for tip in self.tips:
            self.tree.hold(tip)
            self.tree.residency.unpin(tip)
        self.running = False

    def leave(self) -> None:
        """Release all tips."""
        for tip in self.tips:
            (self.tree.residency.unpin if self.running else self.tree.drop)(tip)
        self.tips = []

    @property
    def remaining_tokens(self) -> int:
        """Tokens that the job may still sample."""
        return 0

    def next_draft(self, copies: DraftKV, jobs: Sequence[Job]) -> Job | None:
        """A job that drafts the next tokens, if a draft is due; else None. ``jobs``: all running jobs of the engine."""
        return None

    def drop_drafts(self) -> bool:
        """Drop unverified draft tokens for lack of room. False if there are none."""
        return False

    def expire(self) -> None:
        """End with the tokens so far, since the deadline has passed."""
        raise NotImplementedError

    def outgrow(self) -> None:
        """End with the tokens so far, since the account may hold no more KV."""
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
        """Drop the results, since the caller was cancelled."""

    def close(self) -> None:
        """Release all segments; drop scratch rows."""
        self.leave()
        self.tree.drop(self.base)
        if self.scratch_from is not None:
            self.tree.discard(self.base, self.scratch_from)
