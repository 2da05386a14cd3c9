"""The one account of a search: tokens, bytes, seconds, what sharing saved.

A *row* is one token in one forward pass. Every row is booked once: as a prefill row (a token of the prompt or of a path
that is computed so that its KV is stored), or as a verifier row (scratch, never stored).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import BaseModel, Field


class Lossy(BaseModel):
    """How often an approximation acted, and what its audit found.

    ``acted``: times it acted. ``audited``: of those, how many were also done in full. ``flips``: of those audited, how many
    decisions came out otherwise.
    """

    acted: int = 0
    audited: int = 0
    flips: int = 0

    @property
    def flip_rate(self) -> float | None:
        """Share of audited decisions that came out otherwise, None before the first audit."""
        return self.flips / self.audited if self.audited else None


class SharedKV(Lossy):
    """An approximate sharing of KV; what its audit found is about the next token.

    ``acted``, ``audited``, ``flips``: as in :class:`Lossy`; the decision is the label the model chooses after either of two
    siblings where the task has a question, else the likeliest next token. ``tokens``: those whose KV was taken over and so not
    computed, or, of siblings, was given back. ``kl``: the
    sum over the audited of KL(exact || shared) of the next token, nats. ``top1``: of those audited, how many had the same
    likeliest next token. ``sent_back``: how often it was tried and not taken.
    """

    tokens: int = 0
    kl: float = 0.0
    top1: int = 0
    sent_back: int = 0


class CompressedKV(Lossy):
    """KV that a compression policy let go of.

    ``acted``: how often a path or a thought was reduced. ``tokens``: those whose KV was let go. ``rows``: computed upon a
    reduced path, so not exact. ``audited``: thoughts whose next token was also computed upon the full path; ``flips``: of
    those, how many had another likeliest next token. ``kl``: the sum over them of KL(full || reduced), nats. ``audit_rows``:
    computed for audits.
    """

    tokens: int = 0
    rows: int = 0
    audit_rows: int = 0
    kl: float = 0.0


class ApproximateScores(Lossy):
    """Label questions of verifiers that were answered upon approximate KV.

    ``acted``: those answered upon KV that a compression policy reduced, or that was taken over from another wording. ``audited``:
    of those, where there is a compression policy, how many were also asked upon all KV of their path; ``flips``: of those, how many
    had another likeliest label. ``kl``: the sum over them of KL(full || approximate) of the labels, nats.
    """

    kl: float = 0.0


class Verified(BaseModel):
    """Tokens drafted upon reduced KV and verified upon all of it (VeriCache): nothing of it is in the result.

    ``drafted`` = ``accepted`` + ``rejected``, tokens of branches: those that were drawn in earnest as drafted, and the others.
    ``rounds``: how often a generation was verified; ``rows``: computed for drafts.
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


class Ledger(BaseModel):
    """Counters of one search. All are whole numbers but ``seconds`` and the sums ``kl``.

    They are about this search on this engine as it found it: KV that earlier searches left resident is used, not computed
    again, so figures are compared on a fresh engine or after ``engine.clear()``.

    ``tokens_sampled``: drawn by all branches, as any framework would count completion tokens.
    ``prefill_tokens``: rows computed for tokens of prompt and paths, decode steps included; their KV is stored.
    ``distinct_tokens``: different (path, token) pairs whose KV has been stored at least once; equal to ``prefill_tokens``
    unless something was computed twice.
    ``recomputed_tokens``: rows computed again, after an eviction or, a row a time, where a path is walked again whose logits
    are gone.
    ``context_tokens``: what re-prefilling would cost: for every expansion and every verification the length of prompt plus
    path. ``context_computed``: rows of prompt and paths that were computed outside decoding, its counterpart.
    ``verifier_tokens``: scratch rows of verifier questions, and tokens sampled by verifiers. ``verifier_calls``: nodes a
    verifier was asked about. ``proposal_tokens``: scratch rows of *propose* prompts and replies, which are on no path.
    ``forward_passes``: passes that computed something for this search; several searches may share one.
    ``evicted_tokens``: resident tokens that went to make room for this search.
    ``restored_tokens``: whose KV was copied back from an offload store rather than computed again.
    ``backoffs``: passes with rows of this search that ran out of memory and were tried again with fewer rows.
    ``verifier_layers``: decoder layers run for label questions, summed over questions; ``verifier_layers_full``: what that
    would have been without exits and skips.
    ``layer_exit``: label questions whose pass stopped at a layer, or would have where it was audited (CGEE). ``verify_skip``:
    groups of siblings scored by generation confidence, without asking. ``rival_stop``: expansions some of whose branches were
    not decoded to their end because another was decisive.
    ``prompt_reuse``: prompts that took over the KV of another wording (ASKS). ``sibling``: thoughts that became one with a sibling
    of other words.
    ``compression``: paths and thoughts whose KV a compression policy reduced. ``scores``: answers to verifiers' questions upon such KV.
    ``verified``: tokens that were drafted first, where the engine is lossless.
    ``peak_kv_bytes``: most KV resident in the engine during a pass of this search, what other searches left included.
    ``nodes``: thoughts that became nodes. ``merged``: thoughts that led to a state already in the tree, or became one with a
    sibling. ``rejected``: thoughts the task turned away, truncated ones included.
    ``seconds``: wall time by phase: ``expand``, ``score``, ``total``.
    """

    tokens_sampled: int = 0
    prefill_tokens: int = 0
    distinct_tokens: int = 0
    recomputed_tokens: int = 0
    context_tokens: int = 0
    context_computed: int = 0
    verifier_tokens: int = 0
    verifier_calls: int = 0
    proposal_tokens: int = 0
    forward_passes: int = 0
    evicted_tokens: int = 0
    restored_tokens: int = 0
    backoffs: int = 0
    verifier_layers: int = 0
    verifier_layers_full: int = 0
    layer_exit: Lossy = Field(default_factory=Lossy)
    verify_skip: Lossy = Field(default_factory=Lossy)
    rival_stop: Lossy = Field(default_factory=Lossy)
    prompt_reuse: SharedKV = Field(default_factory=SharedKV)
    sibling: SharedKV = Field(default_factory=SharedKV)
    compression: CompressedKV = Field(default_factory=CompressedKV)
    scores: ApproximateScores = Field(default_factory=ApproximateScores)
    verified: Verified = Field(default_factory=Verified)
    peak_kv_bytes: int = 0
    nodes: int = 0
    merged: int = 0
    rejected: int = 0
    seconds: dict[str, float] = Field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Whether nothing was written or scored upon approximate KV."""
        return not (self.compression.rows or self.prompt_reuse.acted or self.scores.acted)

    @property
    def exact_tokens(self) -> int:
        """ASKS, exact: rows not computed because the same tokens were there already. Lossless, always on."""
        return self.context_tokens - self.context_computed

    @property
    def prefill_saved(self) -> float:
        """Share of the prompt-and-path prefill of a re-prefilling framework that was not computed, 0..1."""
        return 1 - self.context_computed / self.context_tokens if self.context_tokens else 0.0

    @property
    def layers_saved(self) -> float:
        """Share of the decoder layers of label questions that was not run, 0..1."""
        full = self.verifier_layers_full
        return 1 - self.verifier_layers / full if full else 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the wall time of the block to ``seconds[name]``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
