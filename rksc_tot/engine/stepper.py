"""The engine's heart: gather what every job waits for, run one forward pass, hand out the logits.

A job waits at the end of a segment. What is missing on the way there becomes one block of rows, claimed by the oldest job
that asks; whoever else waits for the same tokens is served by the same rows. Long prompts are computed in chunks of at
most ``max_rows`` a pass. What goes wrong with one job ends that job and no other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.engine.asking import Distribution, Labelling
from rksc_tot.engine.forward import Forward
from rksc_tot.engine.jobs import Generation, Job
from rksc_tot.engine.passes import Claim, claim, compute
from rksc_tot.engine.sampler import Draw, sample
from rksc_tot.errors import CacheError, EngineError

if TYPE_CHECKING:
    from torch import Tensor

LOGIT_BYTES = 64 << 20  # of logits kept at handles, beside those somebody waits for


class Stepper:
    """All running jobs of one model."""

    def __init__(self, forward: Forward, tree: PrefixTree, max_rows: int) -> None:
        self.forward = forward
        self.max_rows = max_rows
        self.tree = tree
        self.jobs: list[Job] = []
        self.passes = 0
        self._kept: dict[Segment, None] = {}  # handles' segments with logits, oldest first

    def add(self, job: Job) -> None:
        """Queue a job."""
        self.jobs.append(job)

    def step(self) -> None:
        """Sample where logits are known, then compute what is missing. Ended jobs leave and are told."""
        for job in self.jobs:
            if job.late:
                job.expire()
        self._use_logits()
        self._retire()
        claims = self._claim()
        if claims:
            try:
                compute(self.forward, self.tree, claims)
                self.passes += 1
            except Exception as error:
                failure = EngineError(f"the forward pass failed: {type(error).__name__}: {error}")
                failure.__cause__ = error
                self.fail({made.job for made in claims}, failure)
            self._kept.update((segment, None) for made in claims for segment in made.ends if segment.handles)
        self._retire()

    def fail(self, jobs: Iterable[Job], error: Exception) -> None:
        """End jobs with an error."""
        for job in jobs:
            job.fail(error)
        self._retire()

    # -- logits that are there ---------------------------------------------------------------------------------------

    def _use_logits(self) -> None:
        ready = [j for j in self.jobs if not j.ended and not any(map(j.lacks, j.tips()))]
        tips = list(dict.fromkeys(tip for job in ready for tip in job.tips()))
        if not tips:
            return
        logits = torch.stack([tip.logits for tip in tips])  # [tips, V]
        broken = logits.isnan().any(-1).tolist()
        row = {tip: n for n, tip in enumerate(tips)}
        turns: list[tuple[Generation, list[Draw]]] = []
        for job in ready:
            if any(broken[row[tip]] for tip in job.tips()):
                job.fail(EngineError("the model's logits are not numbers (NaN)", hint="try dtype float32"))
                continue
            if not job.running:
                job.start()
            if isinstance(job, Distribution):
                job.end(job.read(logits[row[job.base]]))
            elif isinstance(job, Generation):
                turns.append((job, job.draws(row)))
        self._advance(turns, logits)
        self._forget(tips)

    def _advance(self, turns: list[tuple[Generation, list[Draw]]], logits: Tensor) -> None:
        draws = [draw for _, wanted in turns for draw in wanted]
        tokens, logprobs = sample(logits, draws) if draws else ([], [])
        at = 0
        for job, wanted in turns:
            after = at + len(wanted)
            job.advance(tokens[at:after], logprobs[at:after])
            at = after

    def _forget(self, used: Iterable[Segment]) -> None:
        """Drop logits that nobody waits for and no handle may want, and the oldest beyond :data:`LOGIT_BYTES`."""
        awaited = self._awaited()
        for tip in used:
            if not tip.handles and tip not in awaited:
                tip.logits = None
        kept = [s for s in self._kept if s.logits is not None and s.handles]
        size = kept[0].logits.numel() * kept[0].logits.element_size() if kept else 0
        for segment in kept[: max(0, len(kept) - LOGIT_BYTES // max(1, size))]:
            if segment not in awaited:
                segment.logits = None
        self._kept = dict.fromkeys(s for s in kept if s.logits is not None)

    def _awaited(self) -> set[Segment]:
        """Tips whose logits a job waits for; a watched question is answered without."""
        waiting = (job for job in self.jobs if not job.ended and not (isinstance(job, Labelling) and job.watched))
        return {tip for job in waiting for tip in job.tips()}

    def _retire(self) -> None:
        ended = [job for job in self.jobs if job.ended]
        self.jobs = [job for job in self.jobs if not job.ended]
        for job in ended:
            job.close()
        for job in ended:
            job.on_end(job)

    # -- logits that are missing -------------------------------------------------------------------------------------

    def _claim(self) -> list[Claim]:
        """Blocks for this pass, oldest job first. Where the KV budget is full, jobs wait; the youngest makes way."""
        claims: list[Claim] = []
        taken: set[Segment] = set()
        awaited = self._awaited()
        full: CacheError | None = None
        for job in self.jobs:
            if full and not job.running:
                continue
            waking, before, evicted = not job.running, len(claims), self.tree.evicted_tokens
            if waking:
                job.start()
            try:
                self._claim_for(job, claims, taken, awaited)
            except CacheError as error:
                full = error
                if waking and len(claims) == before:
                    job.pause()
            job.account.ledger.evicted_tokens += self.tree.evicted_tokens - evicted
        if full and not claims:
            self._make_way(full)
        return claims

    def _claim_for(self, job: Job, claims: list[Claim], taken: set[Segment], awaited: set[Segment]) -> None:
        room = self.max_rows - sum(made.rows for made in claims)
        for tip in job.tips():
            missing = [segment for segment, _ in self.tree.missing(tip)]
            if room <= 0 or not job.lacks(tip) or not taken.isdisjoint((tip, *missing)):
                continue
            made = claim(self.tree, job, tip, room, awaited)
            claims.append(made)
            taken.update((tip, *missing))
            room -= made.rows

    def _make_way(self, full: CacheError) -> None:
        """Nothing fits: the youngest running job is paused; if none runs beside another, the oldest fails."""
        running = [job for job in self.jobs if job.running]
        if len(running) > 1:
            running[-1].pause()
        else:
            (running or self.jobs)[0].fail(full)
