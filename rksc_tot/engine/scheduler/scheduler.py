"""The engine's main loop: collect the missing tokens of all jobs, run one forward pass, distribute the logits.

A job waits for logits at the end of a segment. The missing tokens of that segment's path become one block of rows. The job that
is next by fair share (:mod:`rksc_tot.engine.scheduler.fair_share`) pays for the block; other jobs that wait for the same tokens
share its rows. An error of one job ends only that job.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.core.errors import AccountFull, CacheError, CompressionError, EngineError
from rksc_tot.engine.base import Account
from rksc_tot.engine.jobs.job import Job
from rksc_tot.engine.jobs.sampler import Draws, Logits, sample
from rksc_tot.engine.kv.compressor import Compressor
from rksc_tot.engine.kv.offloading import Restorer
from rksc_tot.engine.kv.speculation import DraftCopies
from rksc_tot.engine.model.forward import Forward
from rksc_tot.engine.scheduler.fair_share import FairShare
from rksc_tot.engine.scheduler.forward_pass import ScheduledBlock, compute, not_numbers, schedule, undo_schedule

LOGIT_BYTES = 64 << 20  # of logits kept for handles; logits that a job waits for are kept as well
WAIT = 0.001  # seconds, before a job looks again whether another engine has given up KV
RECOVERY = 64  # passes without lack of memory after which passes get more rows again
_log = logging.getLogger("rksc_tot")


class Scheduler:
    """All running jobs of one model. At most ``max_rows`` rows are computed in one pass; a row's KV takes ``token_bytes``."""

    def __init__(
        self,
        forward: Forward,
        tree: PrefixTree,
        max_rows: int,
        token_bytes: int,
        compressor: Compressor | None = None,
        draft_copies: DraftCopies | None = None,
        restorer: Restorer | None = None,
    ) -> None:
        self.forward = forward
        self.compressor = compressor
        self.draft_copies = draft_copies
        """Makes compressed copies for speculative decoding; None: no speculative decoding."""
        self.restorer = restorer
        """Copies offloaded KV back; None: evicted KV is computed again."""
        self.token_bytes = token_bytes
        self.max_rows = max_rows
        self.tree = tree
        self.jobs: list[Job] = []
        self.passes = 0
        self.rows = 0
        self.most = max_rows
        """Most rows of a pass now: below ``max_rows`` after a pass ran out of memory."""
        self._fair_share = FairShare()
        self._without_room: set[int | None] = (
            set()
        )  # ids of accounts whose jobs got no room; None: the KV budget was full
        self._since_full = 0  # passes since memory ran out
        self._table: Tensor | None = None  # logits of the last pass
        self._row: dict[Segment, int] = {}  # the row of each segment in it
        self._kept: dict[Segment, None] = {}  # handles' segments with logits, oldest first

    def add(self, job: Job) -> None:
        """Queue a job."""
        job.exact = job.exact or (self.compressor is not None and not self.lossy)
        self.jobs.append(job)
        if self.restorer is not None:
            self.restorer.prefetch(job)

    @property
    def lossy(self) -> bool:
        """Whether jobs continue from compressed KV."""
        return self.compressor is not None and self.draft_copies is None and not self.compressor.rehydrates

    def step(self) -> None:
        """Sample where logits are known, then compute missing rows. Ended jobs are closed."""
        for job in self.jobs:
            if job.account.late:
                job.expire()
        self._use_logits()
        if self.draft_copies is not None:
            drafts = [job.next_draft(self.draft_copies, self.jobs) for job in self.jobs if not job.ended]
            self.jobs += [draft for draft in drafts if draft is not None]
        if self.compressor is not None:
            self.compressor.compress_over_budget(self.jobs)
        self._retire()
        blocks = self._schedule()
        if blocks:
            self._compute(blocks)
        self._retire()

    def fail(self, jobs: Iterable[Job], error: Exception) -> None:
        """End jobs with an error."""
        for job in jobs:
            job.fail(error)
        self._retire()

    # -- known logits -----------------------------------------------------------------------------------------------

    def _use_logits(self) -> None:
        """Draw wherever logits are known, until none are left. One call may take several verified draft tokens."""
        while ready := {job: tips for job in self.jobs if not job.ended and (tips := job.ready())}:
            self._go_on(ready)

    def _go_on(self, ready: dict[Job, list[Segment]]) -> None:
        tips = list(dict.fromkeys(tip for found in ready.values() for tip in found))
        logits, row = self._gathered(tips)
        turns: list[tuple[Job, Draws]] = []
        for job, found in ready.items():
            if not job.running:
                job.start()
            turns.append((job, job.draws(found, row)))
        tokens, logprobs = sample(logits, [wanted for _, wanted in turns])
        for (job, _), drawn, likely in zip(turns, tokens, logprobs, strict=True):
            try:
                job.advance(logits, row, drawn, likely)
            except Exception as error:  # a tokenizer that cannot decode the tokens
                job.fail(EngineError(f"the drawn tokens could not be decoded: {type(error).__name__}: {error}"))
        self._forget(tips)

    def _gathered(self, tips: Sequence[Segment]) -> tuple[Logits, dict[Segment, int]]:
        """The logits of segments as one table, and the row of each. The last pass's table is used if it has few other rows."""
        table = self._table
        if table is not None and len(table) <= 2 * len(tips) and all(tip in self._row for tip in tips):
            return Logits(table), self._row
        stacked = torch.stack([tip.logits for tip in tips])
        return Logits(stacked), {tip: n for n, tip in enumerate(tips)}

    def _forget(self, used: Iterable[Segment]) -> None:
        """Drop logits that neither a job nor a handle needs, and the oldest beyond :data:`LOGIT_BYTES`."""
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
        """Segments after which a job needs logits."""
        return {tip for job in self.jobs if not job.ended for tip in job.awaited()}

    def _retire(self) -> None:
        while ended := [job for job in self.jobs if job.ended]:  # a draft ends with its generation
            self.jobs = [job for job in self.jobs if not job.ended]
            for job in ended:
                job.close()
        if self.draft_copies is not None and not self.jobs:
            self.draft_copies.forget()

    # -- missing logits ---------------------------------------------------------------------------------------------

    def _compute(self, blocks: Sequence[ScheduledBlock]) -> None:
        """Run a pass. If it runs out of memory, the next pass has fewer rows."""
        rows = sum(made.rows for made in blocks)
        self._table, self._row = None, {}
        start = time.perf_counter()
        try:
            logits, broken = compute(self.forward, self.tree, blocks)
        except Exception as error:
            if _out_of_memory(error) and rows > 1:
                self._back_off(rows, blocks)
                return
            failure = error
            if not isinstance(error, EngineError):  # an EngineError has a hint already
                failure = EngineError(f"the forward pass failed: {type(error).__name__}: {error}")
                failure.__cause__ = error
            self.fail({made.job for made in blocks}, failure)
            return
        self.passes += 1
        self.rows += rows
        if _log.isEnabledFor(logging.DEBUG):
            count, held = len({id(made.job) for made in blocks}), self.tree.residency.pool.used * self.token_bytes
            _log.debug("pass %d: %d rows of %d jobs, %d bytes of KV resident", self.passes, rows, count, held)
        if self.restorer is not None:
            self.restorer.store.costs.computed(rows, time.perf_counter() - start)
        self._since_full += 1
        if self.most < self.max_rows and self._since_full >= RECOVERY:
            self.most, self._since_full = min(self.max_rows, 2 * self.most), 0
        ends = [segment for made in blocks for segment in made.ends]
        if self.compressor is not None:
            self.compressor.record_entropy(ends, logits)
        self._table, self._row = logits, {segment: n for n, segment in enumerate(ends)}
        self._kept.update((segment, None) for segment in ends if segment.handles)
        if broken:
            spoiled = {end for made in broken for end in made.ends}
            authors = {made.job for made in broken}
            self.fail(
                [j for j in self.jobs if j in authors or not spoiled.isdisjoint(j.awaited())], not_numbers(self.forward)
            )

    def _back_off(self, rows: int, blocks: Sequence[ScheduledBlock]) -> None:
        self.most, self._since_full = max(1, rows // 2), 0
        _log.warning("a pass of %d rows ran out of memory; the next has %d at most", rows, self.most)
        for ledger in {id(made.job.account.ledger): made.job.account.ledger for made in blocks}.values():
            ledger.backoffs += 1
        if self.forward.device.type == "cuda":
            torch.cuda.empty_cache()

    def _schedule(self) -> list[ScheduledBlock]:
        """Schedule blocks for this pass. If the KV budget is full, jobs wait, the youngest first."""
        blocks: list[ScheduledBlock] = []
        try:
            self._schedule_in_turn(blocks)
        except BaseException:
            undo_schedule(self.tree, blocks)
            raise
        return blocks

    def _schedule_in_turn(self, blocks: list[ScheduledBlock]) -> None:
        taken: set[Segment] = set()
        leaving: set[Segment] = set()  # rows may leave the pass early: no other block may attend to them
        awaited = self._awaited()
        full: tuple[Job, CacheError] | None = None  # the first job without room
        short: dict[int, Job] = {}  # by account: the first job whose account may hold no more KV
        running = {id(job.account) for job in self.jobs if job.running}
        closed = (
            running & self._without_room
        )  # paused jobs of these accounts do not resume: running jobs wait for the room
        none_wakes = bool(running) and None in self._without_room
        self._without_room = set()
        for job, tip, most, lacking in self._fair_share.deal(self.jobs, self.tree, self.most):
            missing = [segment for segment, _ in lacking]
            if (full and not job.running) or not taken.isdisjoint((tip, *missing)):
                continue
            if not job.running and (none_wakes or id(job.account) in closed):
                continue
            if leaving and not leaving.isdisjoint(tip.lineage()):
                continue
            waking = not job.running
            if waking:
                job.start()
            try:
                if self.compressor is not None:
                    self.compressor.book_on(job.account.ledger.compression)
                with self.tree.eviction_log.booked_on(job.account.ledger):
                    made = schedule(self.tree, job, tip, most, lacking, awaited, self.limit(job.account), self.restorer)
            except CacheError as error:
                if not waking:
                    self._without_room.add(id(job.account) if isinstance(error, AccountFull) else None)
                if isinstance(error, AccountFull):
                    short.setdefault(id(job.account), job)
                else:
                    full = full or (job, error)
                if waking:
                    job.pause()
                continue
            blocks.append(made)
            taken.update((tip, *missing))
            if job.leaves_from is not None:
                leaving.update(part.segment for part in made.parts)
            self._fair_share.book(job.account, made.rows)
        served = {id(made.job.account) for made in blocks}
        for stuck in (job for key, job in short.items() if key not in served):
            self._free_kv_of_account(stuck)
        if full and not blocks and not short:
            self._free_kv(*full)

    def limit(self, account: Account) -> int | None:
        """Most tokens that may be resident on an account; None: no limit."""
        return account.kv_tokens(self.token_bytes)

    def _free_kv(self, stuck: Job, full: CacheError) -> None:
        """Free KV when no block fits: drop draft tokens, else fail audits, else pause the youngest running job. A job that does
        not fit alone fails.
        """
        if self._drop_drafts(stuck, self.jobs):
            return
        if audits := [job for job in self.jobs if job.audit]:
            for audit in audits:
                audit.fail(full)
            return
        running = [job for job in self.jobs if job.running]
        if len(running) > 1:
            running[-1].pause()
            return
        last = (running or [stuck])[0]
        if self.tree.residency.pool.others_busy:  # another engine with the same budget will have room to give
            for job in running:
                job.pause()
            time.sleep(WAIT)
            return
        if last.remaining_tokens and not isinstance(full, CompressionError):
            full = CacheError(f"{full}; the job may still write {last.remaining_tokens * self.token_bytes} bytes of KV")
        last.fail(full)

    def _drop_drafts(self, stuck: Job, jobs: Sequence[Job]) -> bool:
        """Drop the draft tokens of the stuck job, else of the youngest with draft tokens. False if there are none."""
        return any(job.drop_drafts() for job in (stuck, *reversed(jobs)))

    def _free_kv_of_account(self, stuck: Job) -> None:
        """Free KV of an account at its limit: drop its draft tokens, else end its audits, else pause its youngest running job. A
        job that does not fit alone ends with the tokens it has.
        """
        here = [job for job in self.jobs if job.account is stuck.account]
        if self._drop_drafts(stuck, here):
            return
        if audits := [job for job in here if job.audit]:
            for audit in audits:
                audit.expire()
            return
        running = [job for job in here if job.running]
        last = (running or [stuck])[-1]
        if len(running) > 1:
            last.pause()
        else:
            last.outgrow()


def _out_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or "not enough memory" in text
        or "can't allocate" in text
    )
