"""Base class of compressors, which apply a compression policy to paths or to the tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.residency import Residency
from rksc_tot.cache.segment import Segment
from rksc_tot.core.ledger import CompressedKV
from rksc_tot.engine.jobs.job import Job
from rksc_tot.policies.compression.base import PathPolicy, TreePolicy, View


@dataclass(slots=True)
class Choice:
    """The slots of a segment among which a policy selects.

    Attributes
    ----------
    segment
        The segment whose KV is compressed.
    open
        Indexes of the slots that the policy may drop.
    fixed
        Indexes of the slots that always stay.
    """

    segment: Segment
    open: list[int]
    fixed: list[int]


class Compressor:
    """Applies one compression policy to one arena.

    The policy sees positions and attention. The compressor finds the slots, keeps the tokens that a handle or a branch ends on
    (the next tokens are drawn after them), and moves KV in the arena.
    """

    def __init__(self, policy: PathPolicy | TreePolicy, arena: Arena) -> None:
        self.policy = policy
        self.arena = arena
        self._ledger = CompressedKV()

    def book_on(self, ledger: CompressedKV) -> None:
        """Book the tokens dropped from now on in ``ledger``."""
        self._ledger = ledger

    @property
    def rehydrates(self) -> bool:
        """Whether the full KV of a path is restored before a job continues from it."""
        return False

    @property
    def chunk(self) -> int:
        """Most tokens that are copied for a draft before the next compression of the copy."""
        raise NotImplementedError

    def compress(self, residency: Residency, tip: Segment, prompt: int, share: float) -> None:
        """Compress the path to ``tip``, which is the copy for a draft.

        Parameters
        ----------
        prompt
            Position at which the prompt of the path ends.
        share
            Share of the tokens to keep; see :class:`~rksc_tot.policies.compression.lossless.Lossless`.
        """
        raise NotImplementedError

    def compress_over_budget(self, jobs: Sequence[Job]) -> None:
        """Compress the paths of ``jobs`` that have become too long. Called before each pass."""

    def record_entropy(self, ends: Sequence[Segment], logits: Tensor) -> None:
        """Store the entropy of the next-token distributions ``logits [n, V]`` at ``ends``, if the policy needs it."""

    def _view(self, choices: Sequence[Choice], prompt: int) -> View:
        """The policy's view of the open slots."""
        positions: list[int] = []
        slots: list[int] = []
        for choice in choices:
            segment = choice.segment
            tokens = segment.kv.present_tokens
            positions += [segment.start + tokens[n] for n in choice.open]
            slots += [segment.kv.slots[n] for n in choice.open]
        stats = self.arena.attention_stats
        return View(
            positions=np.array(positions, dtype=np.int64),
            prompt=sum(position < prompt for position in positions),
            layers=len(self.arena.keys),
            heads=next(iter(self.arena.keys.values())).shape[0],
            attention=stats.recent(slots) if stats is not None and self.policy.heeds_attention else None,
        )


def keep(residency: Residency, choice: Choice, kept: Sequence[int], per_head: bool = False) -> None:
    """Drop the open slots of a choice except for those with the indexes ``kept``."""
    residency.compress(choice.segment, sorted([*kept, *choice.fixed]), per_head)


def ends_with_last_token(segment: Segment) -> bool:
    """Whether the last slot of a segment is that of its last token."""
    return segment.resident and (segment.kv.present is None or segment.kv.present[-1] == len(segment.tokens) - 1)
