"""Best of n: a verifier ranks whole chains, Cobbe et al. 2021, https://arxiv.org/abs/2110.14168."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from rksc_tot.search import Search
from rksc_tot.strategies.base import Strategy
from rksc_tot.strategies.chain import draw_chains


class BestOfN(Strategy):
    """Best of n: whole chains without search; the verifier's favourite is the answer."""

    name: ClassVar[str] = "best_of_n"
    n: int = Field(10, ge=1, le=1_000_000, description="chains")

    async def run(self, search: Search) -> None:
        """Draw, hand in, and let the verifier rank."""
        ends = await draw_chains(search, self.n)
        for node in ends:
            search.finish(node)
        await search.score(ends)
