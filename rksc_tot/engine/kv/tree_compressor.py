"""Frees KV by compressing thoughts to the allotments of a tree policy, before thoughts are evicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.residency import Residency
from rksc_tot.cache.segment import Segment
from rksc_tot.core.errors import CompressionError
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, shown
from rksc_tot.engine.jobs.job import Job
from rksc_tot.engine.kv.compressor import Choice, Compressor, ends_with_last_token, keep
from rksc_tot.engine.kv.thought_stats import ThoughtStats, thought_stats
from rksc_tot.policies.compression.base import ThoughtBlock, TreePolicy
from rksc_tot.policies.compression.selection import chosen, selection_rng


class TreeCompressor(Compressor):
    """Compresses thoughts that no running job uses, by a tree policy.

    It is the :class:`~rksc_tot.cache.eviction.when_to_evict.KVCompressor` of the engine.
    """

    policy: TreePolicy
    SLACK = 16  # at least 1/16 of the KV budget is freed at a time, so that not every token asks for room
    WHOLE_PATH = 1 << 30

    def __init__(self, policy: TreePolicy, arena: Arena) -> None:
        super().__init__(policy, arena)
        self._jobs: Sequence[Job] = ()

    @property
    def rehydrates(self) -> bool:
        """Whether the full KV of a path is restored before a job continues from it."""
        return self.policy.rehydrate

    @property
    def chunk(self) -> int:
        """All tokens: a path is compressed once."""
        return self.WHOLE_PATH

    def compress_over_budget(self, jobs: Sequence[Job]) -> None:
        """Store the running jobs. Thoughts are compressed only when room is needed."""
        self._jobs = jobs

    def record_entropy(self, ends: Sequence[Segment], logits: Tensor) -> None:
        """Store the entropy at the ends of thoughts."""
        held = [n for n, segment in enumerate(ends) if segment.handles]
        if held:
            log_p = logits[held].double().log_softmax(-1)
            for n, entropy in zip(held, (-(log_p.exp() * log_p).nansum(-1)).tolist(), strict=True):
                ends[n].entropy = entropy

    def make_room(self, residency: Residency, count: int) -> None:
        """Compress thoughts until ``count`` slots are free, or as far as the policy allows. Considers the whole tree."""
        unfinished = self._unfinished(residency)
        stats = {
            segment: found
            for segment, found in thought_stats(residency.tree).items()
            if segment.kv.slots and not segment.prompts and segment not in unfinished
        }
        segments = list(stats)
        blocks = [self._block(segment, found) for segment, found in stats.items()]
        wanted = max(count, residency.pool.limit // self.SLACK) - residency.pool.available
        budget = sum(block.tokens for block in blocks) - wanted
        for segment, block, count in zip(segments, blocks, self._allotted(blocks, max(0, budget)), strict=True):
            if count < block.tokens and not block.protected:
                self._compress(residency, segment, count)

    def compress(self, residency: Residency, tip: Segment, prompt: int, share: float) -> None:
        """Compress the thoughts of the path to ``tip`` to a share of their tokens. The last thought is protected."""
        lineage = [segment for segment in tip.lineage() if segment.kv.slots and segment.start >= prompt]
        blocks = []
        for n, segment in enumerate(lineage):
            place_only = ThoughtStats(math.nan, math.nan, 0, len(lineage) - 1 - n)  # a draft copy has no scores
            blocks.append(self._block(segment, place_only)._replace(protected=segment is tip))
        budget = int(share * sum(segment.end - segment.start for segment in lineage))
        for segment, block, count in zip(lineage, blocks, self._allotted(blocks, budget), strict=True):
            if count < block.tokens:
                self._compress(residency, segment, count)

    def _allotted(self, blocks: Sequence[ThoughtBlock], budget: int) -> list[int]:
        """The number of tokens that the policy allots to each block.

        Raises
        ------
        CompressionError
            If the policy fails, or returns an invalid allotment.
        """
        name = f"{self.policy.kind} {self.policy.called!r}"
        try:
            with calling_user_code(f"its allot, with {len(blocks)} blocks and a budget of {budget},", CompressionError):
                shares: list[Any] = list(self.policy.allot(tuple(blocks), budget))
        except UserCodeError as raised:
            raise CompressionError(f"{name}: {raised}", hint="correct the policy") from raised.error
        fault = None if len(shares) == len(blocks) else f"allots to {len(shares)} blocks, there are {len(blocks)}"
        for share, block in zip(shares, blocks, strict=False):
            if not isinstance(share, int | np.integer) or not 0 <= share <= block.tokens:
                fault = fault or f"allots {shown(share)} to a block of {block.tokens} tokens"
            elif block.protected and share < block.tokens:
                fault = fault or f"allots {share} to a protected block of {block.tokens} tokens"
        if fault:
            raise CompressionError(f"{name} {fault}", hint="correct its allot, which says what it returns")
        return [int(share) for share in shares]

    def _unfinished(self, residency: Residency) -> set[Segment]:
        """The segments of paused generations. They are unfinished thoughts, so they are not compressed.

        They are evicted instead. If the eviction policy never evicts held segments, they are compressed like thoughts.
        """
        if not residency.queue.policy.evicts_held:
            return set()
        paused = [job for job in self._jobs if job.writes and not (job.running or job.ended)]
        return {s for job in paused for tip in job.tips for s in tip.lineage() if s.start >= job.base.end}

    def _compress(self, residency: Residency, segment: Segment, count: int) -> None:
        """Keep the ``count`` tokens of a segment that the policy selects. The last token of a handle always stays."""
        slots = len(segment.kv.slots)
        fixed = [slots - 1] if segment.handles and ends_with_last_token(segment) else []
        choice = Choice(segment, list(range(slots - len(fixed))), fixed)
        path = [token for above in segment.lineage() for token in above.tokens]
        rng = selection_rng(self.policy.seed, slots, *path)
        kept = chosen(self.policy, self._view([choice], 0), max(0, count - len(fixed)), rng)
        self._ledger.book_drop(len(choice.open) - len(kept))
        keep(residency, choice, [int(n) for n in kept])

    def _block(self, segment: Segment, stats: ThoughtStats) -> ThoughtBlock:
        """The policy's view of a segment."""
        attention = self.arena.attention_stats
        return ThoughtBlock(
            tokens=len(segment.kv.slots),
            value=stats.value,
            entropy=stats.entropy,
            attention=math.nan if attention is None else attention.share(segment.kv.slots),
            distance=stats.distance,
            protected=segment.pins > 0,
            start=segment.start,
            below=stats.below,
        )
