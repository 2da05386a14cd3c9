"""Drafted tokens of a generation, and which of them were drawn in the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.core.ledger import Verified

END = -1
"""Stands for any end-of-text token."""


class Drafted(NamedTuple):
    """What branches have written since their generation began; ``over``: the last token ends it, so nothing comes after it."""

    branches: Sequence[int]
    tokens: list[int]
    over: bool


@dataclass(slots=True)
class Ahead:
    """Drafted tokens that a generation is about to meet.

    ``leaves``: ends of what passes compute of them, pinned. ``met``: these and all ends of tokens before, where logits are
    wanted. ``start``: position of the first of them. ``guesses``: by branch, what was drafted and not met yet.
    """

    tree: PrefixTree
    ledger: Verified
    start: int
    leaves: list[Segment]
    met: set[Segment]
    guesses: dict[int, deque[int]]
    runs: dict[int, int] = field(default_factory=dict)  # by branch, how many were accepted

    @property
    def longest(self) -> int:
        """The most that was accepted of one branch."""
        return max(self.runs.values(), default=0)

    def meet(self, branches: Sequence[int], tokens: Sequence[int], eos: frozenset[int]) -> None:
        """See what the branches drew. Where it is not as drafted, what was drafted after it is void, too."""
        for branch, token in zip(branches, tokens, strict=True):
            guessed = self.guesses[branch]
            if guessed and guessed[0] == (END if token in eos else token):
                guessed.popleft()
                self.ledger.accepted += 1
                self.runs[branch] = self.runs.get(branch, 0) + 1
            else:
                self.ledger.rejected += len(guessed)
                guessed.clear()

    def close(self) -> None:
        """Let go of what nobody went on from."""
        self.ledger.rejected += sum(map(len, self.guesses.values()))
        for leaf in self.leaves:
            self.tree.unpin(leaf)
        for leaf in self.leaves:
            self.tree.discard(leaf, self.start)
