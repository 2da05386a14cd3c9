"""The engine's heart: gather what every job waits for, run one forward pass, hand out the logits.

A job waits at the end of a segment. What is missing on the way there becomes one block of rows, claimed by the first job
that asks; whoever else waits for the same tokens is served by the same rows. Long prompts are computed in chunks of at
most ``max_rows`` a pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from rksc_tot.cache.pool import SlotPool
from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.engine.forward import Forward
from rksc_tot.engine.jobs import Generation, Job, Labelling
from rksc_tot.engine.plan import Block, build
from rksc_tot.engine.sampler import Draw, sample
from rksc_tot.errors import CacheError


class _Part(NamedTuple):
    """Rows of a block that lie in one segment."""

    segment: Segment
    slots: list[int]


class _Claim(NamedTuple):
    """A block, what it stores, and which rows give the logits of which segment's end."""

    block: Block
    parts: list[_Part]
    ends: list[Segment]
    replay: list[int]  # slots that only serve this pass
    job: Job


class Stepper:
    """All running jobs of one model."""

    def __init__(self, forward: Forward, kv_limit: int, max_rows: int) -> None:
        self.forward = forward
        self.max_rows = max_rows
        self.pool = SlotPool(kv_limit)
        self.tree = PrefixTree(self.pool)
        self.jobs: list[Job] = []
        self.passes = 0

    def add(self, job: Job) -> None:
        """Start a job."""
        self.jobs.append(job)

    def step(self) -> None:
        """Sample where logits are known, then compute what is missing. Ended jobs leave and are told."""
        for job in self.jobs:
            if not job.ended and job.late:
                job.expire()
        self._sample()
        self._retire()
        claims = self._claim()
        if claims:
            self._run(claims)
        self._retire()

    def fail(self, jobs: Iterable[Job], error: Exception) -> None:
        """End jobs with an error."""
        for job in jobs:
            job.fail(error)
        self._retire()

    # -- sampling ----------------------------------------------------------------------------------------------------

    def _sample(self) -> None:
        rows: dict[Segment, int] = {}
        logits: list[Tensor] = []
        turns: list[tuple[Generation, int]] = []
        draws: list[Draw] = []
        for job in self.jobs:
            if job.ended or any(tip.logits is None for tip in job.tips()):
                continue
            if not job.running:
                job.start()
            if isinstance(job, Labelling):
                job.end(job.read(job.base.logits))
            elif isinstance(job, Generation):
                for tip in job.tips():
                    if tip not in rows:
                        rows[tip] = len(logits)
                        logits.append(tip.logits)
                wanted = job.draws(rows)
                turns.append((job, len(wanted)))
                draws += wanted
        if draws:
            tokens, logprobs = sample(torch.stack(logits), draws)
        at = 0
        for job, count in turns:
            tips = job.tips()
            if count:
                job.advance(tokens[at : at + count], logprobs[at : at + count])
            else:
                job.leave()
            at += count
            for tip in tips:
                if not tip.handles:
                    tip.logits = None
            if not job.twigs:
                job.end(job.completions())

    def _retire(self) -> None:
        ended = [job for job in self.jobs if job.ended]
        if ended:
            self.jobs = [job for job in self.jobs if not job.ended]
            for job in ended:
                job.close()
                job.on_end(job)

    # -- computing ---------------------------------------------------------------------------------------------------

    def _claim(self) -> list[_Claim]:
        """Blocks for this pass, oldest job first. Where the KV budget is full, jobs wait; the youngest makes way."""
        claims: list[_Claim] = []
        taken: set[Segment] = set()
        full: CacheError | None = None
        for job in self.jobs:
            if job.ended or (full and not job.running):
                continue
            waking, before = not job.running, len(claims)
            if waking:
                job.start()
            try:
                self._claim_for(job, claims, taken)
            except CacheError as error:
                full = error
                if waking and len(claims) == before:
                    job.pause()
        if full and not claims:
            self._make_way(full)
        return claims

    def _claim_for(self, job: Job, claims: list[_Claim], taken: set[Segment]) -> None:
        for tip in job.tips():
            room = self.max_rows - sum(len(claim.block.tokens) for claim in claims)
            if room <= 0 or tip.logits is not None or tip in taken:
                continue
            missing = self.tree.missing(tip)
            if any(segment in taken for segment, _ in missing):
                continue
            claims.append(self._compute(job, tip, missing, room) if missing else self._replay(job, tip))
            taken.add(tip)
            taken.update(segment for segment, _ in missing)

    def _make_way(self, full: CacheError) -> None:
        """Nothing fits: the youngest running job is paused, or the only one fails."""
        running = [job for job in self.jobs if job.running and not job.ended]
        if len(running) > 1:
            running[-1].pause()
        else:
            (running or self.jobs)[0].fail(full)

    def _compute(self, job: Job, tip: Segment, missing: list[tuple[Segment, int]], room: int) -> _Claim:
        """The next rows on the way to ``tip``."""
        lineage = tip.lineage()
        start = missing[0][0].start + missing[0][1]
        count = min(room, tip.end - start)
        self.tree.make_room(count)
        slots = self.pool.allocate(count)
        tokens: list[int] = []
        parts, ends, wanted = [], [], []
        for segment, first in missing:
            piece = segment.tokens[first : first + count - len(tokens)]
            if not piece:
                break
            parts.append(_Part(segment, slots[len(tokens) : len(tokens) + len(piece)]))
            tokens += piece
            whole = first + len(piece) == len(segment.tokens)
            if whole and (segment is tip or segment.handles):
                ends.append(segment)
                wanted.append(len(tokens) - 1)
        return _Claim(Block(lineage, start, tokens, slots, wanted), parts, ends, [], job)

    def _replay(self, job: Job, tip: Segment) -> _Claim:
        """One row computed again because its logits are wanted and its KV, which stays as it is, does not give them."""
        self.tree.make_room(1)
        slots = self.pool.allocate(1)
        return _Claim(Block(tip.lineage(), tip.end - 1, [tip.tokens[-1]], slots, [0]), [], [tip], slots, job)

    def _run(self, claims: list[_Claim]) -> None:
        stored: list[tuple[_Claim, int]] = []
        for claim in claims:
            new = [self.tree.store(part.segment, part.slots) for part in claim.parts]
            stored += [(claim, n) for n in new]
        try:
            plan = build([claim.block for claim in claims], self.forward.device, self.forward.dtype)
            logits = self.forward.run(plan, self.pool.extent)
        except Exception:
            for claim in reversed(claims):
                for part in claim.parts:
                    del part.segment.slots[len(part.segment.slots) - len(part.slots) :]
                    part.segment.stored_once = min(part.segment.stored_once, len(part.segment.slots))
                self.pool.free(claim.block.slots)
            raise
        self.passes += 1
        row = 0
        for claim in claims:
            for segment in claim.ends:
                segment.logits = logits[row].clone() if segment.handles else logits[row]
                row += 1
            self.pool.free(claim.replay)
        self._book(claims, stored)

    def _book(self, claims: list[_Claim], stored: list[tuple[_Claim, int]]) -> None:
        held = self.pool.used * self.forward.arena.bytes_per_row
        ledgers = {id(claim.job.account.ledger): claim.job.account.ledger for claim in claims}
        for ledger in ledgers.values():
            ledger.forward_passes += 1
            ledger.peak_kv_bytes = max(ledger.peak_kv_bytes, held)
        news = iter(stored)
        for claim in claims:
            job, ledger = claim.job, claim.job.account.ledger
            ledger.prefill_tokens += len(claim.replay)
            ledger.recomputed_tokens += len(claim.replay)
            for part in claim.parts:
                new = next(news)[1]
                rows = len(part.slots)
                if job.scratch_from is not None and part.segment.start >= job.scratch_from:
                    if isinstance(job, Labelling):
                        ledger.verifier_tokens += rows
                    else:
                        ledger.proposal_tokens += rows
                    continue
                ledger.prefill_tokens += rows
                ledger.distinct_tokens += new
                ledger.recomputed_tokens += rows - new
                if not job.decoding:
                    ledger.context_computed += rows
