"""Carries out a compression policy: brings what is resident of paths down to what it chooses.

The policy sees positions and attention; which slots these are, who else stands on them, and moving rows is done here. A token at
whose end somebody stands (a handle, a running branch) is kept whatever the policy says, since what is read there next
comes from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.attention_stats import AttentionStats
from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.core.errors import CompressionError, ConfigError
from rksc_tot.core.ledger import CompressedKV
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, shown
from rksc_tot.engine.jobs.job import Job
from rksc_tot.engine.kv.thought_stats import ThoughtStats, thought_stats
from rksc_tot.engine.model.forward import Forward
from rksc_tot.policies.compression.base import CompressionPolicy, PathPolicy, ThoughtBlock, TreePolicy, View
from rksc_tot.policies.compression.selection import chosen, selection_rng


@dataclass(slots=True)
class Choice:
    """Which slots of a segment a policy may choose from, by index into them, and which stay in any case."""

    segment: Segment
    open: list[int]
    stay: list[int]


class Compressor:
    """What carries out any policy."""

    def __init__(self, policy: PathPolicy | TreePolicy, tree: PrefixTree, arena: Arena) -> None:
        self.policy = policy
        self.tree = tree
        self.arena = arena
        self.ledger = CompressedKV()
        """Of whoever needs room now."""

    @property
    def exact(self) -> bool:
        """Whether a path is made whole before work goes on from it."""
        return False

    def compress_over_budget(self, jobs: Sequence[Job]) -> None:
        """Reduce what these jobs have made too long."""

    def note(self, ends: Sequence[Segment], logits: Tensor) -> None:
        """Take note of the logits ``[n, V]`` at these ends."""

    @property
    def chunk(self) -> int:
        """Tokens that are copied for drafts before the copy is brought down."""
        raise NotImplementedError

    def compress(self, tip: Segment, prompt: int, share: float) -> None:
        """Reduce the path to ``tip`` for drafts. ``prompt``: where its prompt ends; ``share``: see
        :class:`~rksc_tot.policies.compression.lossless.Lossless`.
        """
        raise NotImplementedError

    def _view(self, choices: Sequence[Choice], prompt: int) -> View:
        positions: list[int] = []
        slots: list[int] = []
        for choice in choices:
            segment = choice.segment
            names = range(segment.reach) if segment.kept is None else segment.kept
            positions += [segment.start + names[n] for n in choice.open]
            slots += [segment.slots[n] for n in choice.open]
        observed = self.arena.observed
        return View(
            positions=np.array(positions, dtype=np.int64),
            prompt=sum(position < prompt for position in positions),
            layers=len(self.arena.keys),
            heads=next(iter(self.arena.keys.values())).shape[0],
            attention=observed.lately(slots) if observed is not None and self.policy.heeds_attention else None,
        )

    def _keep(self, choice: Choice, kept: Sequence[int]) -> None:
        self.tree.reduce(choice.segment, sorted([*kept, *choice.stay]))


class PathCompressor(Compressor):
    """Holds each path of a generation to what a path policy leaves of it."""

    policy: PathPolicy

    def compress_over_budget(self, jobs: Sequence[Job]) -> None:
        """Reduce the paths that have become too long, but for what somebody is making whole. What fails, fails its job."""
        whole = {s for job in jobs if job.exact and not job.ended for tip in job.tips for s in tip.lineage()}
        for job in jobs:
            if not (job.writes and job.running) or job.exact:
                continue
            self.ledger = job.account.ledger.compression
            try:
                for tip in job.tips:
                    if not whole or whole.isdisjoint(tip.lineage()):
                        self.compress(tip, job.prompt_end)
            except CompressionError as error:
                job.fail(error)

    @property
    def chunk(self) -> int:
        """Tokens that are copied for drafts before the copy is brought down."""
        return self.policy.recent

    def compress(self, tip: Segment, prompt: int, share: float = 1.0) -> None:
        """Reduce the path to ``tip`` if it is too long."""
        if sum(len(s.slots) for s in tip.lineage()) < self.policy.budget + 2 * self.policy.recent:
            return
        lineage = [segment for segment in tip.lineage() if segment.slots]
        choices = self._choices(lineage)
        staying = sum(len(choice.stay) for choice in choices) - self.policy.recent
        view = self._view(choices, prompt)
        budget = max(self.policy.budget - staying, view.prompt if self.policy.pin_prompt else 0)
        tokens = [token for segment in lineage for token in segment.tokens]
        rng = selection_rng(self.policy.seed, *tokens)
        kept = chosen(self.policy, view, budget, rng)
        if kept.shape[-1] < len(view):
            self.ledger.book_drop(len(view) - kept.shape[-1])
        bounds = [int(n) for n in np.cumsum([0, *(len(choice.open) for choice in choices)])]
        if kept.ndim == 1:
            for choice, low, high in zip(choices, bounds, bounds[1:], strict=False):
                own = kept[(kept >= low) & (kept < high)] - low
                self._keep(choice, [choice.open[n] for n in own])
            return
        counts = shares(kept, [len(choice.open) for choice in choices])
        for choice, count, low, high in zip(choices, counts, bounds, bounds[1:], strict=False):
            if count < len(choice.open):
                self._keep_by_head(choice, chosen(self.policy, _part(view, low, high), count, rng))

    def _choices(self, lineage: Sequence[Segment]) -> list[Choice]:
        """All slots of the path but the last ``recent``, ends where somebody stands aside."""
        left = self.policy.recent
        found: list[Choice] = []
        for segment in reversed(lineage):
            count = len(segment.slots)
            late = min(left, count)
            left -= late
            stay = list(range(count - late, count))
            open_ = list(range(count - late))
            if open_ and not late and segment.stood_on and _ends_with_last(segment):
                stay = [open_.pop()]
            found.append(Choice(segment, open_, stay))
        return found[::-1]

    def _keep_by_head(self, choice: Choice, kept: np.ndarray) -> None:
        """Move the rows each layer and head keeps, ``kept [L, Hk, k]``, into the first open slots; the other open ones go."""
        slots = [choice.segment.slots[n] for n in choice.open]
        self.tree.keep_copy(choice.segment)  # while its rows are where they were
        if kept.size:
            self.arena.compact(slots, kept)
        self.tree.reduce(choice.segment, sorted([*choice.open[: kept.shape[-1]], *choice.stay]), mixed=True)


class TreeCompressor(Compressor):
    """Lets a tree policy make room among the thoughts that no running work stands on."""

    policy: TreePolicy
    SLACK = 16  # a relief makes room for this part of the budget, at least, so that it does not come at every token

    def __init__(self, policy: TreePolicy, tree: PrefixTree, arena: Arena) -> None:
        super().__init__(policy, tree, arena)
        self._jobs: Sequence[Job] = ()
        tree.relief = self.make_room

    def compress_over_budget(self, jobs: Sequence[Job]) -> None:
        """Take note of who is here: room is made when it is short."""
        self._jobs = jobs

    @property
    def exact(self) -> bool:
        """Whether a path is made whole before work goes on from it."""
        return self.policy.rehydrate

    def make_room(self, count: int) -> None:
        """Bring thoughts down until ``count`` slots are free, or as far as the policy goes. Looks at the whole tree."""
        unclosed = self._unclosed()
        known = {
            s: standing
            for s, standing in thought_stats(self.tree).items()
            if s.slots and not s.prompts and s not in unclosed
        }
        segments = list(known)
        blocks = [self._block(segment, standing) for segment, standing in known.items()]
        free = max(count, self.tree.pool.limit // self.SLACK) - self.tree.pool.available
        budget = sum(block.tokens for block in blocks) - free
        for segment, block, count in zip(segments, blocks, self._allotted(blocks, max(0, budget)), strict=True):
            if count < block.tokens and not block.protected:
                self._reduce(segment, count)

    def note(self, ends: Sequence[Segment], logits: Tensor) -> None:
        """Keep the entropy at thoughts' ends."""
        held = [n for n, segment in enumerate(ends) if segment.handles]
        if held:
            log_p = logits[held].double().log_softmax(-1)
            for n, entropy in zip(held, (-(log_p.exp() * log_p).nansum(-1)).tolist(), strict=True):
                ends[n].entropy = entropy

    @property
    def chunk(self) -> int:
        """Tokens that are copied for drafts before the copy is brought down."""
        return 1 << 30

    def compress(self, tip: Segment, prompt: int, share: float) -> None:
        """Bring the thoughts on a path down to a share of their tokens; the one that ends at ``tip`` is protected."""
        lineage = [segment for segment in tip.lineage() if segment.slots and segment.start >= prompt]
        blocks = []
        for n, segment in enumerate(lineage):
            standing = ThoughtStats(
                math.nan, math.nan, 0, len(lineage) - 1 - n
            )  # of a twin nothing is known but its place
            blocks.append(self._block(segment, standing)._replace(protected=segment is tip))
        budget = int(share * sum(segment.end - segment.start for segment in lineage))
        for segment, block, count in zip(lineage, blocks, self._allotted(blocks, budget), strict=True):
            if count < block.tokens:
                self._reduce(segment, count)

    def _allotted(self, blocks: Sequence[ThoughtBlock], budget: int) -> list[int]:
        """What the policy allots, once it is known to be an allotment. Raises CompressionError with the fault if it is none."""
        name = f"{self.policy.kind} {self.policy.called!r}"
        try:
            with calling_user_code(f"its allot, with {len(blocks)} blocks and a budget of {budget},", CompressionError):
                shares: list[Any] = list(self.policy.allot(tuple(blocks), budget))
        except UserCodeError as raised:
            raise CompressionError(f"{name}: {raised}", hint="correct the policy") from raised.error
        fault = None if len(shares) == len(blocks) else f"allots to {len(shares)} blocks, there are {len(blocks)}"
        for share, block in zip(shares, blocks, strict=False):
            if not (type(share) is int or isinstance(share, np.integer)) or not 0 <= share <= block.tokens:
                fault = fault or f"allots {shown(share)} to a block of {block.tokens} tokens"
            elif block.protected and share < block.tokens:
                fault = fault or f"allots {share} to a protected block of {block.tokens} tokens"
        if fault:
            raise CompressionError(f"{name} {fault}", hint="correct its allot, which says what it returns")
        return [int(share) for share in shares]

    def _unclosed(self) -> set[Segment]:
        """What generations that wait for room have written so far: no thought yet, so it is kept whole or evicted, where the
        eviction policy evicts what somebody holds.
        """
        if not self.tree.policy.evicts_held:
            return set()
        waiting = [job for job in self._jobs if job.writes and not (job.running or job.ended)]
        return {s for job in waiting for tip in job.tips for s in tip.lineage() if s.start >= job.base.end}

    def _reduce(self, segment: Segment, count: int) -> None:
        stay = [len(segment.slots) - 1] if segment.handles and _ends_with_last(segment) else []
        choice = Choice(segment, list(range(len(segment.slots) - len(stay))), stay)
        path = [token for above in segment.lineage() for token in above.tokens]
        rng = selection_rng(self.policy.seed, len(segment.slots), *path)
        kept = chosen(self.policy, self._view([choice], 0), max(0, count - len(stay)), rng)
        self.ledger.book_drop(len(choice.open) - len(kept))
        self._keep(choice, [int(n) for n in kept])

    def _block(self, segment: Segment, standing: ThoughtStats) -> ThoughtBlock:
        observed = self.arena.observed
        return ThoughtBlock(
            tokens=len(segment.slots),
            value=standing.value,
            entropy=standing.entropy,
            attention=math.nan if observed is None else observed.share(segment.slots),
            distance=standing.distance,
            protected=segment.pins > 0,
            start=segment.start,
            below=standing.below,
        )


def compressor(policy: CompressionPolicy, tree: PrefixTree, forward: Forward, name: str) -> Compressor:
    """What carries out a policy on a model.

    Raises
    ------
    ConfigError
        If it cannot be carried out there.
    """
    if policy.heeds_attention:
        see_attention(forward, f"{policy.kind} {policy.called!r}", name)
    windows = getattr(forward.model.config.get_text_config(), "sliding_window", None)
    if policy.per_head and windows:
        raise ConfigError(
            f"{policy.kind} {policy.called!r} keeps other tokens in every head, and {name} has a window of {windows} tokens,"
            " which is one for all heads",
            hint="keep one set of tokens for all heads",
        )
    if isinstance(policy, PathPolicy):
        return PathCompressor(policy, tree, forward.arena)
    if isinstance(policy, TreePolicy):
        if policy.per_head:
            raise ConfigError(
                f"{policy.kind} {policy.called!r} keeps other tokens in every head, and thoughts that may be visited again keep"
                " the same in all",
                hint="keep one set of tokens for all heads",
            )
        return TreeCompressor(policy, tree, forward.arena)
    raise ConfigError(
        f"{policy.kind} {policy.called!r} is about neither a path nor a tree",
        hint="derive it from PathPolicy or TreePolicy",
    )


def see_attention(forward: Forward, who: str, name: str) -> None:
    """Have attention measured from now on. Raises ConfigError if it cannot be seen in this model."""
    if forward.route != "fast":
        raise ConfigError(f"{who} heeds attention, which cannot be seen in {name}", hint="use one that does not")
    forward.arena.observed = forward.arena.observed or AttentionStats()


def _part(view: View, low: int, high: int) -> View:
    """The tokens ``low`` to ``high`` of a view."""
    attention = None if view.attention is None else view.attention[..., low:high]
    prompt = min(max(0, view.prompt - low), high - low)
    return View(view.positions[..., low:high], prompt, view.layers, view.heads, attention)


def shares(kept: np.ndarray, lengths: Sequence[int]) -> list[int]:
    """How many tokens each segment of a path keeps, of which heads keep ``kept [L, Hk, k]``: the mean over heads, in whole
    tokens that add up to ``k`` (largest remainders, the later segment among equals).
    """
    bounds = np.cumsum([0, *lengths])
    means = np.histogram(kept, bounds)[0] / (kept.shape[0] * kept.shape[1])
    whole = np.floor(means + 1e-9).astype(int)
    order = np.lexsort((-np.arange(len(lengths)), whole - means))
    for n in order[: kept.shape[-1] - int(whole.sum())]:
        whole[n] += 1
    return [int(n) for n in whole]


def _ends_with_last(segment: Segment) -> bool:
    """Whether the last slot is that of the last token."""
    return segment.resident and (segment.kept is None or segment.kept[-1] == len(segment.tokens) - 1)
