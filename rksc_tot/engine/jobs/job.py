"""What runs in the engine: the base class of every job."""

from __future__ import annotations

import time
from typing import Any, Self

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.engine.base import Account


class Job:
    """Work that ends in a result or an error. ``scratch_from``: rows from this position on are never kept. ``prompt``: where the
    prompt of its path ends.

    A *running* job pins the paths to its tips: their KV stays. A paused one only holds its place: when room is short its KV
    may go, and is computed again when the job runs on, with the same outcome.
    """

    def __init__(self, tree: PrefixTree, base: Segment, account: Account, scratch_from: int | None) -> None:
        self.tree = tree
        self.base = base
        self.account = account
        self.scratch_from = scratch_from
        self.prompt = 0
        self.exact = False  # whether its path is made whole before it reads on
        self.aside = False  # whether it is an audit's, on a path of its own, and no result depends on it
        self.ended = False
        self.result: Any = None
        self.error: Exception | None = None
        self.running = False
        tree.hold(base)

    def after(self, prompt: int) -> Self:
        """Say where the prompt of its path ends."""
        self.prompt = prompt
        return self

    def tips(self) -> list[Segment]:
        """Segments at whose end logits are wanted."""
        raise NotImplementedError

    def wanted(self) -> list[Segment]:
        """Segments that passes must get to: tips, unless there is a way beyond them already."""
        return self.tips()

    def ready(self) -> list[Segment]:
        """Tips from which the job can go on now."""
        tips = self.tips()
        return [] if any(map(self.lacks, tips)) else tips

    def start(self) -> None:
        """Run, or run on."""
        for tip in self.tips():
            self.tree.pin(tip)
            self.tree.drop(tip)
        self.running = True

    def pause(self) -> None:
        """Let go of the KV, but not of the place."""
        for tip in self.tips():
            self.tree.hold(tip)
            self.tree.unpin(tip)
        self.running = False

    def leave(self) -> None:
        """Give up all tips."""
        for tip in self.tips():
            (self.tree.unpin if self.running else self.tree.drop)(tip)

    def lacks(self, tip: Segment) -> bool:
        """Whether a pass must still give what is wanted at the end of a tip."""
        return tip.logits is None or (self.exact and not tip.exact)

    @property
    def decoding(self) -> bool:
        """Whether the rows wanted now are the job's own sampled tokens."""
        return False

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return self.account.deadline is not None and time.perf_counter() >= self.account.deadline

    @property
    def payer(self) -> Account | None:
        """On whose account rows are kept, where that is limited."""
        return None if self.account.kv_bytes is None else self.account

    def end(self, result: object) -> None:
        """Nothing more is to be done."""
        self.ended, self.result = True, result

    def fail(self, error: Exception) -> None:
        """Nothing more can be done."""
        self.ended, self.error = True, error

    def expire(self) -> None:
        """The deadline has passed: end with what there is."""
        raise NotImplementedError

    def give_back(self) -> None:
        """Drop the results nobody will take."""

    def close(self) -> None:
        """Let go of everything; drop what was scratch."""
        self.leave()
        self.tree.drop(self.base)
        if self.scratch_from is not None:
            self.tree.discard(self.base, self.scratch_from)
