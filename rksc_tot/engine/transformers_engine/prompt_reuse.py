"""ASKS, prompt reuse: a prompt variant reuses KV of the prompt, and keeps it if a gate accepts it.

The variant (the *branch*) gets an isolated path, which no exact request can reach. If the gate rejects it, that path is
dropped, and the prompt is computed like any other when it is used.
"""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import Future
from typing import NamedTuple

import torch
from torch import Tensor

from rksc_tot.cache.prefix_tree import Segment
from rksc_tot.core.errors import CacheError, EngineError, RkscTotError
from rksc_tot.core.seeds import stream_key
from rksc_tot.engine.attention.plan import Block
from rksc_tot.engine.base import Account
from rksc_tot.engine.jobs.job import Job
from rksc_tot.engine.jobs.layer_readers import StateKeeper
from rksc_tot.engine.scheduler.engine_thread import EngineThread
from rksc_tot.engine.scheduler.forward_pass import compute, not_numbers, schedule
from rksc_tot.engine.scheduler.scheduler import Scheduler
from rksc_tot.engine.transformers_engine.handle import KVHandle
from rksc_tot.engine.transformers_engine.kv_splice import compute_rest, copy_shared, overlap
from rksc_tot.engine.transformers_engine.rope_shift import PROBES, RopeShift, find_rotation
from rksc_tot.policies.asks import GATES, PromptReuse, Signals, sigma, variant_name

MOST_KEPT = 4  # KV that cannot be evicted may fill 1/4 of the KV budget


class ReuseAudit(NamedTuple):
    """Comparison of reused KV with an exact computation: KL(exact || reused) of the next token in nats, and whether the
    likeliest token is the same.
    """

    kl: float
    same: bool


class ReuseDecision(NamedTuple):
    """Whether a prompt variant uses KV of the prompt.

    Attributes
    ----------
    kept
        Whether reused KV is kept.
    why
        Why no KV is reused; None if KV is reused.
    exact
        Tokens of the prefix that both prompts share. Reusing their KV changes nothing.
    reused
        Tokens whose KV was reused at another position; 0 if not kept.
    computed
        All other tokens.
    variant
        Name of the pair of prompts, see :func:`~rksc_tot.policies.asks.variant_name`.
    signals, gate
        Measurements on the branch, and the gate's value; None if too few tokens are shared for a test.
    audit
        The comparison with the exact computation; None without an audit.
    """

    kept: bool
    why: str | None
    exact: int
    reused: int
    computed: int
    variant: str
    signals: Signals | None = None
    gate: float | None = None
    audit: ReuseAudit | None = None


class PromptReuser:
    """Reuses KV between prompt variants on one engine. Call it only in the engine thread."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._rotation: RopeShift | None = None

    def rotation(self) -> RopeShift:
        """The model's RoPE shift of keys; found and proved at the first call.

        Raises
        ------
        UnsupportedModel
            If the model's positions are not rotary.
        """
        if self._rotation is None:
            tree, forward = self._scheduler.tree, self._scheduler.forward
            slots = tree.room.allocate(len(PROBES))
            try:
                self._rotation = find_rotation(forward, slots, tree.residency.pool.extent)
            finally:
                tree.residency.pool.free(slots)
        return self._rotation

    def open(
        self, exact: Segment, reference: Segment, rule: PromptReuse, account: Account, key: int
    ) -> tuple[Segment | None, ReuseDecision]:
        """Try to reuse KV of the prompt that ends at ``reference`` for the prompt that ends at ``exact``.

        ``key`` seeds the audit.

        Returns
        -------
        tuple
            The segment that ends the branch, held for the caller, or None if no KV was reused; and the decision.

        Raises
        ------
        UnsupportedModel
            If the model's positions are not rotary.
        """
        rotation, tree = self.rotation(), self._scheduler.tree
        source, target = _tokens(reference), _tokens(exact)
        shared = overlap(source, target)
        name = variant_name(source, target, shared.source, shared.target, shared.length)
        run = shared.after(min(rule.recompute, shared.length))
        rejected = ReuseDecision(False, None, run.head, 0, exact.end - run.head, name)
        if not tree.residency.missing(exact):
            return None, rejected._replace(why="its exact KV is resident already")
        if run.head >= exact.end - 1:
            return None, rejected._replace(why="it has the same tokens as the reference")
        if any(segment.irreplaceable for segment in reference.lineage()):
            return None, rejected._replace(why="the reference itself uses reused KV")
        if run.length < rule.least:
            return None, rejected._replace(why=f"{run.length} tokens could be reused, fewer than {rule.least}")
        pinned = sum(len(segment.kv.slots) for segment in tree.segments() if segment.irreplaceable) + len(target)
        if pinned > tree.residency.pool.limit // MOST_KEPT:
            return None, rejected._replace(
                why=f"{pinned} tokens that may not be evicted would fill more than 1/{MOST_KEPT} of the KV budget"
            )
        booked = tree.eviction_log.booked_on
        branch = tree.walk(tree.private_root(irreplaceable=True), target)
        tree.hold(branch)
        tree.residency.pin(branch)
        kept = False
        try:
            with booked(account.ledger), ResidentPrompt(self._scheduler, reference, account) as job:
                job.compute_states()
                limit = self._scheduler.limit(account)
                copy_shared(self._scheduler.forward, tree, reference, branch, run, rotation, job.payer, limit)
                compute_rest(self._scheduler.forward, tree, branch, run, self._scheduler.max_rows, account.ledger)
                signals = _signals(branch, reference, rule, name)
            value, why = GATES[rule.gate](signals), rule.objection(signals)
            if why:
                return None, rejected._replace(why=why, signals=signals, gate=value)
            decision = ReuseDecision(True, None, run.head, run.length, exact.end - run.copied, name, signals, value)
            if random.Random(stream_key(key, "audit")).random() < rule.audit:
                with booked(account.ledger), ResidentPrompt(self._scheduler, exact, account) as job:
                    job.compute_logits()
                    decision = decision._replace(audit=_audit(exact.logits, branch.logits))
            _book(account, decision)
            kept = True
            return branch, decision
        except CacheError as full:  # there may be room for the variant alone
            return None, rejected._replace(why=str(full))
        finally:
            tree.residency.unpin(branch)
            if not kept:
                tree.drop(branch)
                tree.discard(branch, 0)


class ResidentPrompt(Job):
    """A context in which a prompt is resident."""

    def __init__(self, scheduler: Scheduler, tip: Segment, account: Account) -> None:
        super().__init__(scheduler.tree, tip, account, prompt_end=0)
        scheduler.tree.hold(tip)
        self.tips = [tip]
        self._scheduler = scheduler

    def __enter__(self) -> ResidentPrompt:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def compute_logits(self) -> None:
        """Compute the missing KV, and the logits at the end."""
        while self.base.logits is None:
            self._pass()

    def compute_states(self) -> None:
        """Compute the missing KV, and the hidden states of the last token if the model allows reads between layers."""
        while self.tree.residency.missing(self.base):
            self._pass()
        forward = self._scheduler.forward
        if self.base.states is None and forward.lens:
            last = Block(self.base.lineage(), self.base.end - 1, [self.base.tokens[-1]], [self.base.kv.slots[-1]], [0])
            keeper = StateKeeper([0], [self.base])
            forward.run(forward.plan([last]), self.tree.residency.pool.extent, [keeper])
            keeper.hand_out()
            self.account.ledger.book_passes(1, 0)
            self.account.ledger.book_rows(1, 0, decoded=True)

    def _pass(self) -> None:
        scheduler = self._scheduler
        missing, limit = self.tree.residency.missing(self.base), scheduler.limit(self.account)
        made = schedule(self.tree, self, self.base, scheduler.max_rows, missing, (self.base,), limit)
        if compute(scheduler.forward, self.tree, [made]).broken:
            raise not_numbers(scheduler.forward)


def _tokens(segment: Segment) -> list[int]:
    return [token for part in segment.lineage() for token in part.tokens]


def _signals(branch: Segment, reference: Segment, rule: PromptReuse, name: str) -> Signals:
    logits = branch.logits.double()
    first, second = logits.topk(2).values.tolist()
    similar = None if branch.states is None else sigma(branch.states, reference.states, rule.alpha)
    entropy = float(torch.special.entr(logits.softmax(-1)).sum())
    return Signals(similar, first - second, entropy, rule.harm.get(name))


def _audit(exact: Tensor, shared: Tensor) -> ReuseAudit:
    wanted, got = exact.double().log_softmax(-1), shared.double().log_softmax(-1)
    return ReuseAudit(max(0.0, float((wanted.exp() * (wanted - got)).sum())), int(wanted.argmax()) == int(got.argmax()))


def _book(account: Account, decision: ReuseDecision) -> None:
    """Book a decision that kept reused KV, and its audit. A flip is a change of the likeliest next token."""
    record = account.ledger.prompt_reuse
    record.book_sharing(decision.reused)
    if decision.audit:
        record.book_audit(decision.audit.kl, not decision.audit.same, decision.audit.same)


async def reuse(
    reuser: PromptReuser,
    thread: EngineThread,
    exact: KVHandle,
    reference: KVHandle,
    rule: PromptReuse,
    account: Account,
    key: int,
) -> tuple[Segment | None, ReuseDecision]:
    """:meth:`PromptReuser.open` in the engine thread, for two open handles.

    On an error, the new segment and ``exact`` are dropped.

    Raises
    ------
    UnsupportedModel
        If the model's positions are not rotary.
    EngineError
        If the forward pass fails.
    """

    def give_up(done: Future[tuple[Segment | None, ReuseDecision]]) -> None:
        with thread.books():
            exact.released = True
            thread.scheduler.tree.drop(exact.segment, prompt=True)
            if not done.cancelled() and done.exception() is None and (branch := done.result()[0]) is not None:
                thread.scheduler.tree.drop(branch)

    task = thread.submit(lambda: reuser.open(exact.segment, reference.segment, rule, account, key))
    try:
        return await asyncio.wrap_future(task)
    except BaseException as error:
        task.add_done_callback(give_up)
        if isinstance(error, Exception) and not isinstance(error, RkscTotError):
            raise EngineError(f"the forward pass failed: {type(error).__name__}: {error}") from error
        raise
