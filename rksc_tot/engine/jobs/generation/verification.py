"""Verification of draft tokens: a generation draws its own tokens and compares them with the draft."""

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
    """The tokens that branches share at the end of a draft, from the beginning of their generation.

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
    """Draft tokens on the path of a generation while they are verified.

    Attributes
    ----------
    tree
        The prefix tree that holds the draft tokens.
    ledger
        Counts accepted and rejected tokens.
    start
        Position of the first draft token.
    leaves
        Segments that end with the last draft token of a branch; pinned.
    path
        All segments after which the generation draws while its tokens agree with the draft.
    unverified
        Draft tokens not compared yet, by branch.
    accepted
        Number of accepted tokens, by branch.
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
        """The largest number of accepted tokens of a branch."""
        return max(self.accepted.values(), default=0)

    def compare(self, branches: Sequence[int], tokens: Sequence[int], eos: frozenset[int]) -> None:
        """Compare the drawn tokens of branches with their drafts. The first difference rejects the rest of a draft."""
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
        """Reject the tokens not compared yet, and drop the segments beyond the generation's tips."""
        self.ledger.rejected += sum(map(len, self.unverified.values()))
        for leaf in self.leaves:
            self.tree.residency.unpin(leaf)
        for leaf in self.leaves:
            self.tree.discard(leaf, self.start)
