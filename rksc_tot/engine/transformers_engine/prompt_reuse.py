"""ASKS, phrasing: a prompt takes over the KV of another wording of the same, and keeps it if the gate lets it.

The branch gets a path of its own, which no exact request ever meets. If it is sent back, that path is dropped, and the prompt
is computed when it is used, like any other.
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
from rksc_tot.engine.scheduler.batch import compute, schedule
from rksc_tot.engine.scheduler.engine_thread import EngineThread
from rksc_tot.engine.scheduler.scheduler import Scheduler
from rksc_tot.engine.transformers_engine.handle import KVHandle
from rksc_tot.engine.transformers_engine.kv_splice import compute_rest, overlap, take_over
from rksc_tot.engine.transformers_engine.rope_shift import PROBES, RopeShift, find_rotation
from rksc_tot.policies.asks import GATES, PromptReuse, Signals, sigma, wording

MOST_KEPT = 4  # the part of the KV budget that may hold what cannot be evicted: 1/4


class ReuseAudit(NamedTuple):
    """What the exact computation says: KL(exact || shared) of the next token, nats, and whether the likeliest is the same."""

    kl: float
    same: bool


class ReuseDecision(NamedTuple):
    """What became of a prompt under other wording.

    ``kept``: whether it stands on KV that it took over; if not, ``why`` not. ``exact``: tokens of the head it has in common
    with the reference, which cost nothing and change nothing. ``reused``: tokens whose KV was taken over, 0 if not kept.
    ``computed``: the others. ``wording``: its name, see :func:`~rksc_tot.policies.asks.wording`. ``signals`` and ``gate``:
    what was known of it, and the gate's value; None where too little was in common to try.
    """

    kept: bool
    why: str | None
    exact: int
    reused: int
    computed: int
    wording: str
    signals: Signals | None = None
    gate: float | None = None
    audit: ReuseAudit | None = None


class PromptReuser:
    """Shares KV between wordings on one engine. Whoever calls has the stepper's books to himself."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._rotation: RopeShift | None = None

    def rotation(self) -> RopeShift:
        """How this model's keys are moved, found and proved once.

        Raises
        ------
        UnsupportedModel
            If its positions are not rotary.
        """
        if self._rotation is None:
            tree, forward = self._scheduler.tree, self._scheduler.forward
            tree.make_room(len(PROBES))
            slots = tree.pool.allocate(len(PROBES))
            try:
                self._rotation = find_rotation(forward, slots, tree.pool.extent)
            finally:
                tree.pool.free(slots)
        return self._rotation

    def open(
        self, exact: Segment, reference: Segment, rule: PromptReuse, account: Account, key: int
    ) -> tuple[Segment | None, ReuseDecision]:
        """Try to let the prompt that ends at ``exact`` stand on KV of the one that ends at ``reference``.

        Returns the segment on which it does, held for the caller, or None; and what was found. ``key`` seeds the audit.

        Raises
        ------
        UnsupportedModel
            If the model's positions are not rotary.
        """
        rotation, tree = self.rotation(), self._scheduler.tree
        lender, borrower = _tokens(reference), _tokens(exact)
        shared = overlap(lender, borrower)
        name = wording(lender, borrower, shared.source, shared.target, shared.length)
        run = shared.after(min(rule.recompute, shared.length))
        sent_back = ReuseDecision(False, None, run.head, 0, exact.end - run.head, name)
        if not tree.missing(exact):
            return None, sent_back._replace(why="it is resident as it stands")
        if run.head >= exact.end - 1:
            return None, sent_back._replace(why="it is the reference, token by token")
        if any(segment.irreplaceable for segment in reference.lineage()):
            return None, sent_back._replace(why="the reference itself stands on KV that it took over")
        if run.length < rule.least:
            return None, sent_back._replace(why=f"{run.length} tokens could be taken over, fewer than {rule.least}")
        pinned = sum(len(segment.slots) for segment in tree.segments() if segment.irreplaceable) + len(borrower)
        if pinned > tree.pool.limit // MOST_KEPT:
            return None, sent_back._replace(
                why=f"{pinned} tokens that may not be evicted would take more than 1/{MOST_KEPT} of the KV budget"
            )
        evicted = tree.evicted_tokens
        branch = tree.walk(tree.private_root(irreplaceable=True), borrower)
        tree.hold(branch)
        tree.pin(branch)
        kept = False
        try:
            with _Work(self._scheduler, reference, account) as work:
                work.look()
                if (limit := self._scheduler.limit(account)) is not None:
                    tree.make_room_within(len(borrower), limit, account)
                take_over(self._scheduler.forward, tree, reference, branch, run, rotation, work.payer)
                compute_rest(self._scheduler.forward, tree, branch, run, self._scheduler.max_rows, account.ledger)
                signals = _signals(branch, reference, rule, name)
            value, why = GATES[rule.gate](signals), rule.objection(signals)
            if why:
                return None, sent_back._replace(why=why, signals=signals, gate=value)
            verdict = ReuseDecision(True, None, run.head, run.length, exact.end - run.taken, name, signals, value)
            if random.Random(stream_key(key, "audit")).random() < rule.audit:
                with _Work(self._scheduler, exact, account) as work:
                    work.finish()
                    verdict = verdict._replace(audit=_audit(exact.logits, branch.logits))
            _book(account, verdict)
            kept = True
            return branch, verdict
        except CacheError as full:  # there may be room for the prompt by itself
            return None, sent_back._replace(why=str(full))
        finally:
            account.ledger.evicted_tokens += tree.evicted_tokens - evicted
            tree.unpin(branch)
            if not kept:
                tree.drop(branch)
                tree.discard(branch, 0)


class _Work(Job):
    """A prompt that is to be resident, and stays so meanwhile."""

    def __init__(self, scheduler: Scheduler, tip: Segment, account: Account) -> None:
        super().__init__(scheduler.tree, tip, account, None)
        scheduler.tree.hold(tip)
        self._scheduler = scheduler

    def tips(self) -> list[Segment]:
        return [self.base]

    def __enter__(self) -> _Work:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def finish(self) -> None:
        """Compute what is missing, and the logits at the end."""
        while self.base.logits is None:
            self._pass()

    def look(self) -> None:
        """Compute what is missing, and the hidden states of the last token where they are to be had."""
        while self.tree.missing(self.base):
            self._pass()
        forward = self._scheduler.forward
        if self.base.states is None and forward.lens:
            last = Block(self.base.lineage(), self.base.end - 1, [self.base.tokens[-1]], [self.base.slots[-1]], [0])
            compressor = StateKeeper([0], [self.base])
            forward.run(forward.plan([last]), self.tree.pool.extent, [compressor])
            compressor.settle()
            self.account.ledger.forward_passes += 1
            self.account.ledger.prefill_tokens += 1
            self.account.ledger.recomputed_tokens += 1

    def _pass(self) -> None:
        scheduler = self._scheduler
        made = schedule(self.tree, self, self.base, scheduler.max_rows, (self.base,), scheduler.limit(self.account))
        compute(scheduler.forward, self.tree, [made])


def _tokens(segment: Segment) -> list[int]:
    return [token for part in segment.lineage() for token in part.tokens]


def _signals(branch: Segment, reference: Segment, rule: PromptReuse, name: str) -> Signals:
    logits = branch.logits.double()
    probabilities = logits.softmax(-1)
    (first, second), (likely, other) = (part.topk(2).values.tolist() for part in (logits, probabilities))
    alike = None if branch.states is None else sigma(branch.states, reference.states, rule.alpha)
    entropy = float(torch.special.entr(probabilities).sum())
    return Signals(alike, first - second, likely - other, entropy, rule.harm.get(name))


def _audit(exact: Tensor, shared: Tensor) -> ReuseAudit:
    wanted, got = exact.double().log_softmax(-1), shared.double().log_softmax(-1)
    return ReuseAudit(max(0.0, float((wanted.exp() * (wanted - got)).sum())), int(wanted.argmax()) == int(got.argmax()))


def _book(account: Account, verdict: ReuseDecision) -> None:
    """What was kept, and what its audit found; the decision is the likeliest next token."""
    record = account.ledger.prompt_reuse
    record.acted += 1
    record.tokens += verdict.reused
    if verdict.audit:
        record.audited += 1
        record.kl += verdict.audit.kl
        record.top1 += verdict.audit.same
        record.flips += not verdict.audit.same


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

    Where this raises, a segment that was made is dropped, and so is ``exact``.

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
