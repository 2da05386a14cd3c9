"""The account of one search: tokens, bytes, seconds, and what sharing saved.

A *row* is one token in one forward pass. Every row is booked once, by one of these methods:

========================== =======================================================================
``Ledger.book_rows``       a token of a prompt or path, computed so that its KV is stored
``Ledger.book_question``   a token of a verifier's question, or of a reply that a verifier reads
``Ledger.book_reply``      a token of a prompt for proposals, or of the reply
``Verified.book_rows``     a token of a draft
``CompressedKV.book_rows`` a token of an audit; also, beside the above, one computed from compressed KV
========================== =======================================================================
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import BaseModel, Field

from rksc_tot.core.ledger.approximations import (
    ApproximateScores,
    CompressedKV,
    Lossy,
    SharedKV,
    Verified,
)


class Ledger(BaseModel, extra="forbid"):
    """Counters of one search. All are whole numbers but ``seconds`` and the sums ``kl``.

    KV that earlier searches left resident is used, not computed again: compare figures on a fresh or cleared engine.

    Attributes
    ----------
    tokens_sampled
        Tokens drawn by all branches and replies, as other frameworks count completion tokens.
    constrained_tokens
        Those of them that were drawn under a constraint.
    prefill_tokens
        Rows of prompts and paths, decode steps included. Their KV is stored.
    distinct_tokens
        Different (path, token) pairs whose KV has been stored at least once. Equal to ``prefill_tokens`` unless something was
        computed twice.
    recomputed_tokens
        Rows computed again: after an eviction, or one where a path is walked again whose logits are gone.
    context_tokens
        What re-prefilling would cost: the length of prompt plus path, summed over all expansions and verifications.
    context_computed
        Rows of prompts and paths that were computed outside decoding, its counterpart.
    verifier_tokens
        Rows of verifiers' questions, and of the replies that verifiers read.
    verifier_calls
        Nodes that a verifier was asked about.
    abstentions
        Times that a judge or a person was asked and gave no usable answer.
    proposal_tokens
        Rows of prompts for proposals, and of the replies. No path contains them.
    thinking_tokens
        Sampled tokens inside thinking blocks; ``tokens_sampled`` has them too.
    forced_closes
        Thinking blocks that the search closed, at their budget or where the model ended its text inside.
    forward_passes
        Passes with rows of this search. Several searches may share a pass.
    evicted_tokens
        Resident tokens that were evicted to make room for this search.
    restored_tokens
        Tokens whose KV was copied back from an offload store instead of computed again.
    backoffs
        Passes with rows of this search that ran out of memory and were tried again with fewer rows.
    verifier_layers
        Decoder layers run for label questions, summed over questions.
    verifier_layers_full
        What ``verifier_layers`` would be without exits and skips.
    layer_exit
        Label questions that left their pass before the last layer, or would have left it where they were audited (CGEE).
    verify_skip
        Groups of siblings that were scored by generation confidence, without a question.
    rival_stop
        Expansions in which some branches were cut off because another branch was decisive.
    prompt_reuse
        Prompt variants that reused KV of the prompt (ASKS).
    sibling
        Thoughts that were merged with a sibling of other words.
    compression
        Paths and thoughts whose KV a compression policy dropped in part.
    scores
        Answers to verifiers' questions from such KV.
    verified
        Tokens that were drafted first, where compression is lossless.
    peak_kv_bytes
        Most KV resident in the engine during a pass of this search, including KV that other searches left.
    nodes
        Thoughts that became nodes.
    merged
        Thoughts that led to a state already in the tree, or were merged with a sibling.
    rejected
        Thoughts that the task refused, truncated ones included.
    closings
        Paths that were asked for their answer (``Task.closing``). Their replies count as sampled tokens and nodes.
    observations
        Texts that ``Task.observe`` put on paths. Their tokens are rows of paths; they are not sampled.
    seconds
        Wall time by phase: ``expand``, ``score``, ``total``.
    """

    tokens_sampled: int = 0
    constrained_tokens: int = 0
    prefill_tokens: int = 0
    distinct_tokens: int = 0
    recomputed_tokens: int = 0
    context_tokens: int = 0
    context_computed: int = 0
    verifier_tokens: int = 0
    verifier_calls: int = 0
    abstentions: int = 0
    proposal_tokens: int = 0
    thinking_tokens: int = 0
    forced_closes: int = 0
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
    closings: int = 0
    observations: int = 0
    seconds: dict[str, float] = Field(default_factory=dict)

    # -- booking -----------------------------------------------------------------------------------------------------

    def book_visit(self, length: int, computed: int = 0) -> None:
        """Book an expansion or verification of a path. ``computed``: rows of it computed before that, outside a job."""
        self.context_tokens += length
        self.context_computed += computed

    def book_rows(self, rows: int, new: int, *, decoded: bool) -> None:
        """Book rows of a prompt or path.

        Parameters
        ----------
        rows
            How many.
        new
            How many of them are stored for the first time ever.
        decoded
            Whether they are tokens that were just sampled.
        """
        self.prefill_tokens += rows
        self.distinct_tokens += new
        self.recomputed_tokens += rows - new
        self.context_computed += 0 if decoded else rows

    def book_question(self, rows: int) -> None:
        """Book rows of a verifier's question, or of a reply that a verifier reads."""
        self.verifier_tokens += rows

    def book_abstention(self) -> None:
        """Book that a judge or a person gave no usable answer."""
        self.abstentions += 1

    def book_reply(self, rows: int) -> None:
        """Book rows of a prompt for proposals, or of its reply."""
        self.proposal_tokens += rows

    def book_thinking(self, tokens: int, forced: int) -> None:
        """Book sampled tokens inside thinking blocks, and blocks that were closed by force."""
        self.thinking_tokens += tokens
        self.forced_closes += forced

    def book_answer(self, layer: int, layers: int, *, exact: bool = True) -> None:
        """Book the answer to a label question, read after ``layer`` of ``layers``, from exact KV or not."""
        self.verifier_layers += layer
        self.verifier_layers_full += layers
        self.layer_exit.acted += layer < layers
        self.scores.acted += not exact

    def book_passes(self, passes: int, kv_bytes: int) -> None:
        """Book forward passes, and the KV that is resident with them."""
        self.forward_passes += passes
        self.peak_kv_bytes = max(self.peak_kv_bytes, kv_bytes)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the wall time of the block to ``seconds[name]``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    # -- derived figures ---------------------------------------------------------------------------------------------

    @property
    def exact(self) -> bool:
        """Whether no token was written and no thought scored from approximate KV."""
        return not (self.compression.rows or self.prompt_reuse.acted or self.scores.acted)

    @property
    def exact_tokens(self) -> int:
        """Rows not computed because the same tokens were resident already (exact sharing, always on)."""
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
