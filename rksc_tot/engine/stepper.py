"""The engine's heart: gather what every job waits for, run one forward pass, hand out the logits.

A job waits at the end of a segment. What is missing on the way there becomes one block of rows, claimed by the job whose turn
it is (:mod:`rksc_tot.engine.turns`); whoever else waits for the same tokens is served by the same rows. What goes wrong with
one job ends that job and no other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.engine.asking import Distribution, Labelling
from rksc_tot.engine.base import Account
from rksc_tot.engine.forward import Forward
from rksc_tot.engine.jobs import Generation, Job
from rksc_tot.engine.passes import Claim, claim, compute
from rksc_tot.engine.sampler import Draws, Logits, sample
from rksc_tot.engine.turns import Turns
from rksc_tot.errors import AccountFull, CacheError, EngineError

LOGIT_BYTES = 64 << 20  # of logits kept at handles, beside those somebody waits for
RECOVERY = 64  # passes after which a pass that ran out of memory is forgotten
_log = logging.getLogger("rksc_tot")


class Stepper:
    """All running jobs of one model. At most ``max_rows`` rows are computed in one pass; a row's KV takes ``token_bytes``."""

    def __init__(self, forward: Forward, tree: PrefixTree, max_rows: int, token_bytes: int) -> None:
        self.forward = forward
        self.token_bytes = token_bytes
        self.max_rows = max_rows
        self.tree = tree
        self.jobs: list[Job] = []
        self.passes = 0
        self.rows = 0
        self.most = max_rows
        """Rows of a pass now: fewer than ``max_rows`` after one ran out of memory."""
        self._turns = Turns()
        self._since_full = 0  # passes since memory ran out
        self._table: Tensor | None = None  # logits of the last pass
        self._row: dict[Segment, int] = {}  # whose they are
        self._kept: dict[Segment, None] = {}  # handles' segments with logits, oldest first

    def add(self, job: Job) -> None:
        """Queue a job."""
        self.jobs.append(job)

    def step(self) -> None:
        """Sample where logits are known, then compute what is missing. Ended jobs leave."""
        for job in self.jobs:
            if job.late:
                job.expire()
        self._use_logits()
        self._retire()
        claims = self._claim()
        if claims:
            self._compute(claims)
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
        logits, row = self._gathered(tips)
        broken = logits.log_z.isnan().tolist()
        turns: list[tuple[Generation, Draws]] = []
        for job in ready:
            if any(broken[row[tip]] for tip in job.tips()):
                job.fail(EngineError("the model's logits are not numbers (NaN)", hint="try dtype float32"))
                continue
            if not job.running:
                job.start()
            if isinstance(job, Distribution):
                job.end(job.read(logits, row[job.base]))
            elif isinstance(job, Generation):
                turns.append((job, job.draws(row)))
        tokens, logprobs = sample(logits, [wanted for _, wanted in turns])
        for (job, _), drawn, likely in zip(turns, tokens, logprobs, strict=True):
            try:
                job.advance(drawn, likely)
            except Exception as error:  # a tokenizer that cannot decode what the model wrote
                job.fail(EngineError(f"what was drawn could not be read: {type(error).__name__}: {error}"))
        self._forget(tips)

    def _gathered(self, tips: Sequence[Segment]) -> tuple[Logits, dict[Segment, int]]:
        """The logits of these segments, and in which row each; those of the last pass as they are, if most are wanted."""
        table = self._table
        if table is not None and len(table) <= 2 * len(tips) and all(tip in self._row for tip in tips):
            return Logits(table), self._row
        stacked = torch.stack([tip.logits for tip in tips])
        return Logits(stacked), {tip: n for n, tip in enumerate(tips)}

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
        if ended:
            self.jobs = [job for job in self.jobs if not job.ended]
            for job in ended:
                job.close()

    # -- logits that are missing -------------------------------------------------------------------------------------

    def _compute(self, claims: Sequence[Claim]) -> None:
        """Run a pass. One for which memory does not suffice is tried again with fewer rows."""
        rows = sum(made.rows for made in claims)
        self._table, self._row = None, {}
        try:
            logits = compute(self.forward, self.tree, claims)
        except Exception as error:
            if _out_of_memory(error) and rows > 1:
                self._back_off(rows, claims)
                return
            failure = EngineError(f"the forward pass failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self.fail({made.job for made in claims}, failure)
            return
        self.passes += 1
        self.rows += rows
        self._since_full += 1
        if self.most < self.max_rows and self._since_full >= RECOVERY:
            self.most, self._since_full = min(self.max_rows, 2 * self.most), 0
        ends = [segment for made in claims for segment in made.ends]
        self._table, self._row = logits, {segment: n for n, segment in enumerate(ends)}
        self._kept.update((segment, None) for segment in ends if segment.handles)

    def _back_off(self, rows: int, claims: Sequence[Claim]) -> None:
        self.most, self._since_full = max(1, rows // 2), 0
        _log.warning("a pass of %d rows ran out of memory; going on with %d", rows, self.most)
        for ledger in {id(made.job.account.ledger): made.job.account.ledger for made in claims}.values():
            ledger.backoffs += 1
        if self.forward.device.type == "cuda":
            torch.cuda.empty_cache()

    def _claim(self) -> list[Claim]:
        """Blocks for this pass. Where the KV budget is full, jobs wait; the youngest makes way."""
        claims: list[Claim] = []
        taken: set[Segment] = set()
        awaited = self._awaited()
        full: tuple[Job, CacheError] | None = None  # the first for which there is no room
        short: dict[int, Job] = {}  # likewise of each account that may hold no more
        for job, tip, most in self._turns.deal(self.jobs, self.tree, self.most):
            missing = [segment for segment, _ in self.tree.missing(tip)]
            if (full and not job.running) or not taken.isdisjoint((tip, *missing)):
                continue
            waking, evicted = not job.running, self.tree.evicted_tokens
            if waking:
                job.start()
            try:
                made = claim(self.tree, job, tip, most, awaited, self.limit(job.account, claims))
            except CacheError as error:
                if isinstance(error, AccountFull):
                    short.setdefault(id(job.account), job)
                else:
                    full = full or (job, error)
                if waking:
                    job.pause()
                continue
            finally:
                job.account.ledger.evicted_tokens += self.tree.evicted_tokens - evicted
            claims.append(made)
            taken.update((tip, *missing))
            self._turns.book(job.account, made.rows)
        served = {id(made.job.account) for made in claims}
        for stuck in (job for key, job in short.items() if key not in served):
            self._make_way_within(stuck)
        if full and not claims and not short:
            self._make_way(*full)
        return claims

    def limit(self, account: Account, claims: Sequence[Claim] = ()) -> int | None:
        """Tokens that may be resident on an account beside those already claimed."""
        if account.kv_bytes is None:
            return None
        claimed = sum(made.rows for made in claims if made.parts and made.job.account is account)
        return account.kv_bytes // self.token_bytes - claimed

    def _make_way(self, stuck: Job, full: CacheError) -> None:
        """Nothing fits: the youngest running job is paused; the only one, or what does not fit beside none, fails."""
        running = [job for job in self.jobs if job.running]
        if len(running) > 1:
            running[-1].pause()
        else:
            (running or [stuck])[0].fail(full)

    def _make_way_within(self, stuck: Job) -> None:
        """An account may hold no more: its youngest running job is paused; the only one, or what does not fit beside none,
        ends with what it has.
        """
        running = [job for job in self.jobs if job.account is stuck.account and job.running]
        if len(running) > 1:
            running[-1].pause()
        else:
            stuck.account.kv_short = True
            (running or [stuck])[0].expire()


def _out_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or "not enough memory" in text
        or "can't allocate" in text
    )
