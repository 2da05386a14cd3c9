"""Draft tokens of a generation, and which of them the generation draws."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.core.ledger import Verified

END = -1
"""Stands for any end-of-text token."""


class DraftTokens(NamedTuple):
    """What branches have written in a draft, from the beginning of their generation.

    Attributes
    ----------
    branches
        Their numbers in the request.
    tokens
        The tokens that the generation had drawn, then the draft tokens.
    ends
        Whether the last token ends the generation.
    """

    branches: Sequence[int]
    tokens: list[int]
    ends: bool


@dataclass(slots=True)
class Verification:
    """Draft tokens on the path of a generation, while it draws its own tokens and compares.

    Attributes
    ----------
    tree
        The prefix tree that they stand in.
    ledger
        Where accepted and rejected tokens are counted.
    start
        Position of the first draft token.
    leaves
        Segments at which the draft tokens of a branch end, pinned.
    path
        All segments after which the generation draws as long as it draws what was drafted.
    unverified
        By branch, the draft tokens that are not compared yet.
    accepted
        By branch, how many were accepted.
    """

    tree: PrefixTree
    ledger: Verified
    start: int
    leaves: list[Segment] = field(default_factory=list)
    path: set[Segment] = field(default_factory=set)
    unverified: dict[int, deque[int]] = field(default_factory=dict)
    accepted: dict[int, int] = field(default_factory=dict)

    @property
    def longest(self) -> int:
        """The most tokens that were accepted of one branch."""
        return max(self.accepted.values(), default=0)

    def compare(self, branches: Sequence[int], tokens: Sequence[int], eos: frozenset[int]) -> None:
        """Compare the tokens that branches drew with their drafts. The first difference rejects the rest of a draft."""
        for branch, token in zip(branches, tokens, strict=True):
            draft = self.unverified[branch]
            if draft and draft[0] == (END if token in eos else token):
                draft.popleft()
                self.ledger.accepted += 1
                self.accepted[branch] = self.accepted.get(branch, 0) + 1
            else:
                self.ledger.rejected += len(draft)
                draft.clear()

    def close(self) -> None:
        """Reject what is not compared yet, and drop the segments that the generation does not stand on."""
        self.ledger.rejected += sum(map(len, self.unverified.values()))
        for leaf in self.leaves:
            self.tree.residency.unpin(leaf)
        for leaf in self.leaves:
            self.tree.discard(leaf, self.start)
