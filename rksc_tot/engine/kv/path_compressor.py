"""Keeps each path of a generation within the budget of a path policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rksc_tot.cache.residency import Residency
from rksc_tot.cache.segment import Segment
from rksc_tot.core.errors import CompressionError
from rksc_tot.engine.jobs.job import Job
from rksc_tot.engine.kv.compressor import Choice, Compressor, ends_with_last_token, keep
from rksc_tot.policies.compression.base import PathPolicy, View
from rksc_tot.policies.compression.selection import chosen, selection_rng


class PathCompressor(Compressor):
    """Compresses each path separately, whenever it has grown by some tokens."""

    policy: PathPolicy

    @property
    def chunk(self) -> int:
        """The number of tokens that always stay at the end of a path."""
        return self.policy.recent

    def compress_over_budget(self, jobs: Sequence[Job]) -> None:
        """Compress the paths that have become too long, except for paths that a job restores.

        If the policy fails on a path, only the path's job fails.
        """
        full = {s for job in jobs if job.exact and not job.ended for tip in job.tips for s in tip.lineage()}
        for job in jobs:
            if not (job.writes and job.running) or job.exact:
                continue
            self.book_on(job.account.ledger.compression)
            try:
                for tip in job.tips:
                    if not full or full.isdisjoint(tip.lineage()):
                        self.compress(job.tree.residency, tip, job.prompt_end)
            except CompressionError as error:
                job.fail(error)

    def compress(self, residency: Residency, tip: Segment, prompt: int, share: float = 1.0) -> None:
        """Compress the path to ``tip`` if it is too long. ``share`` is not used, since the policy has its own budget."""
        if sum(len(s.kv.slots) for s in tip.lineage()) < self.policy.budget + 2 * self.policy.recent:
            return
        lineage = [segment for segment in tip.lineage() if segment.kv.slots]
        choices = self._choices(lineage)
        ends = sum(len(choice.fixed) for choice in choices) - self.policy.recent
        view = self._view(choices, prompt)
        budget = max(self.policy.budget - ends, view.prompt if self.policy.pin_prompt else 0)
        tokens = [token for segment in lineage for token in segment.tokens]
        rng = selection_rng(self.policy.seed, *tokens)
        kept = chosen(self.policy, view, budget, rng)
        if kept.shape[-1] < len(view):
            self._ledger.book_drop(len(view) - kept.shape[-1])
        bounds = [int(n) for n in np.cumsum([0, *(len(choice.open) for choice in choices)])]
        if kept.ndim == 1:
            for choice, low, high in zip(choices, bounds, bounds[1:], strict=False):
                own = kept[(kept >= low) & (kept < high)] - low
                keep(residency, choice, [choice.open[n] for n in own])
            return
        counts = shares(kept, [len(choice.open) for choice in choices])
        for choice, count, low, high in zip(choices, counts, bounds, bounds[1:], strict=False):
            if count < len(choice.open):
                own = chosen(self.policy, _part(view, low, high), count, rng)
                self._keep_by_head(residency, choice, own)

    def _choices(self, lineage: Sequence[Segment]) -> list[Choice]:
        """All slots of a path. The last ``recent`` slots stay, and the last slot of segments that a handle or branch ends on."""
        left = self.policy.recent
        found: list[Choice] = []
        for segment in reversed(lineage):
            count = len(segment.kv.slots)
            late = min(left, count)
            left -= late
            fixed = list(range(count - late, count))
            open_ = list(range(count - late))
            if open_ and not late and segment.is_end and ends_with_last_token(segment):
                fixed = [open_.pop()]
            found.append(Choice(segment, open_, fixed))
        return found[::-1]

    def _keep_by_head(self, residency: Residency, choice: Choice, kept: np.ndarray) -> None:
        """Move the KV that heads keep (``kept [L, Hk, k]``) into the first k open slots; drop the other open slots."""
        slots = [choice.segment.kv.slots[n] for n in choice.open]
        residency.offload(choice.segment)  # before its KV is moved
        if kept.size:
            self.arena.compact(slots, kept)
        keep(residency, choice, choice.open[: kept.shape[-1]], per_head=True)


def shares(kept: np.ndarray, lengths: Sequence[int]) -> list[int]:
    """Number of tokens that each segment of a path keeps, if heads keep ``kept [L, Hk, k]``.

    The mean over heads, rounded to whole tokens with sum ``k`` by largest remainders; among equals the later segment.
    """
    bounds = np.cumsum([0, *lengths])
    means = np.histogram(kept, bounds)[0] / (kept.shape[0] * kept.shape[1])
    whole = np.floor(means + 1e-9).astype(int)
    order = np.lexsort((-np.arange(len(lengths)), whole - means))
    for n in order[: kept.shape[-1] - int(whole.sum())]:
        whole[n] += 1
    return [int(n) for n in whole]


def _part(view: View, low: int, high: int) -> View:
    """The tokens ``low`` to ``high`` of a view."""
    attention = None if view.attention is None else view.attention[..., low:high]
    prompt = min(max(0, view.prompt - low), high - low)
    return View(view.positions[..., low:high], prompt, view.layers, view.heads, attention)
