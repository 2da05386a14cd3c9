"""Best of n: Cobbe et al. 2021, https://arxiv.org/abs/2110.14168. A verifier ranks whole chains."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from rksc_tot.search import Search
from rksc_tot.strategies.base import Strategy
from rksc_tot.strategies.chain import generate_chains


class BestOfN(Strategy):
    """Best of n: whole chains without search; the chain with the best score gives the answer."""

    name: ClassVar[str] = "best_of_n"
    n: int = Field(10, ge=1, le=1_000_000, description="chains")

    async def run(self, search: Search) -> None:
        """Generate ``n`` chains, hand them in, and score them."""
        ends = await generate_chains(search, self.n)
        for node in ends:
            search.finish(node)
        await search.score(ends)
