"""Self-consistency: Wang et al. 2022, https://arxiv.org/abs/2203.11171."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import ClassVar

from pydantic import Field

from rksc_tot.search import Search
from rksc_tot.strategies.base import Strategy
from rksc_tot.strategies.chain import generate_chains


class SelfConsistency(Strategy):
    """Self-consistency: whole chains without search; the commonest answer wins, and the score decides ties.

    Answers are the same if ``Task.normalise`` gives the same value.
    """

    name: ClassVar[str] = "self_consistency"
    n: int = Field(10, ge=1, le=1_000_000, description="chains")

    async def run(self, search: Search) -> None:
        """Generate ``n`` chains, count the votes, and score only tied answers."""
        ends = await generate_chains(search, self.n)
        votes: Counter[Hashable] = Counter()
        for node in ends:
            votes[search.vote(node)] += node.count
        del votes[None]
        for node in ends:
            search.finish(node, votes[search.vote(node)])
        most = max(votes.values(), default=0)
        tied = {vote for vote, count in votes.items() if count == most}
        if len(tied) > 1:
            await search.score(node for node in ends if search.vote(node) in tied)
