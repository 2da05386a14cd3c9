"""Counters of approximations, with what their audits found."""

from __future__ import annotations

from pydantic import BaseModel


class Lossy(BaseModel, extra="forbid"):
    """How often an approximation acted, and what its audit found.

    Attributes
    ----------
    acted
        Times that the approximation acted.
    audited
        How many of these were also done exactly.
    flips
        How many audited decisions were different when done exactly.
    """

    acted: int = 0
    audited: int = 0
    flips: int = 0

    @property
    def flip_rate(self) -> float | None:
        """Share of audited decisions that were different when done exactly; None before the first audit."""
        return self.flips / self.audited if self.audited else None


class Diverging(Lossy):
    """An approximation whose audit compares probability distributions.

    Attributes
    ----------
    kl
        Sum of KL(exact || approximate) over all audits, nats.
    """

    kl: float = 0.0

    def book_audit(self, kl: float, flipped: bool) -> None:
        """Book an audit."""
        self.audited += 1
        self.kl += kl
        self.flips += flipped


class SharedKV(Diverging):
    """KV that is shared although tokens differ. Its audit compares the next token.

    Attributes
    ----------
    acted, audited, flips, kl
        As in :class:`Diverging`. The audited decision of merged siblings is the label that the model chooses after each of them.
        Where the task has no question it is the likeliest next token.
    tokens
        For prompts: tokens whose KV was reused instead of computed. For siblings: tokens whose KV was released.
    top1
        Audits in which the likeliest next token is the same.
    sent_back
        Times that sharing was tried and undone.
    """

    tokens: int = 0
    top1: int = 0
    sent_back: int = 0

    def book_sharing(self, tokens: int) -> None:
        """Book tokens whose KV is shared."""
        self.acted += 1
        self.tokens += tokens

    def book_audit(self, kl: float, flipped: bool, top1: bool = False) -> None:
        """Book an audit. ``top1``: whether the likeliest next token is the same."""
        super().book_audit(kl, flipped)
        self.top1 += top1


class CompressedKV(Diverging):
    """KV that a compression policy dropped.

    Attributes
    ----------
    acted
        Times that a path or a thought was compressed.
    tokens
        Tokens whose KV was dropped.
    rows
        Rows computed from compressed KV, so not exact.
    audited
        Thoughts whose next token was also computed from all KV of their path.
    flips
        Audits in which the likeliest next token is another one.
    audit_rows
        Rows computed for audits.
    """

    tokens: int = 0
    rows: int = 0
    audit_rows: int = 0

    def book_drop(self, tokens: int) -> None:
        """Book the compression of a path or a thought. ``tokens``: those whose KV was dropped."""
        self.acted += 1
        self.tokens += tokens

    def book_rows(self, rows: int, *, exact: bool, audit: bool) -> None:
        """Book rows by the KV that they were computed from. ``audit``: whether an audit computed them."""
        self.rows += 0 if exact else rows
        self.audit_rows += rows if audit else 0


class ApproximateScores(Diverging):
    """Label questions of verifiers that were answered from approximate KV.

    Attributes
    ----------
    acted
        Questions answered from compressed KV, or from KV that a prompt variant reused.
    audited
        How many of these were also asked on all KV of their path. There are audits only with a compression policy.
    flips
        Audits in which the likeliest label is another one.
    """


class Verified(BaseModel, extra="forbid"):
    """Tokens that were drafted on compressed KV and verified on the full KV (VeriCache). Results do not depend on them.

    Attributes
    ----------
    drafted
        Tokens of branches that were drafted; the sum of ``accepted`` and ``rejected``.
    accepted
        Drafted tokens that the branch also drew.
    rejected
        Drafted tokens that the branch did not draw.
    rounds
        Times that a generation was verified.
    rows
        Rows computed for drafts.
    """

    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    rounds: int = 0
    rows: int = 0

    @property
    def acceptance(self) -> float | None:
        """Share of the drafted tokens that were accepted, None before the first."""
        return self.accepted / self.drafted if self.drafted else None

    def book_rows(self, rows: int) -> None:
        """Book rows of a draft."""
        self.rows += rows

    def book_round(self, drafted: int) -> None:
        """Book drafted tokens that are verified from now on."""
        self.rounds += 1
        self.drafted += drafted
