"""Chain of thought: Wei et al. 2022, https://arxiv.org/abs/2201.11903."""

from __future__ import annotations

from typing import ClassVar

from rksc_tot.core.budget import BudgetReached
from rksc_tot.core.tree import Node
from rksc_tot.search import Search
from rksc_tot.strategies.base import Strategy


class Chain(Strategy):
    """Chain of thought: one path, every token the likeliest."""

    name: ClassVar[str] = "cot"

    async def run(self, search: Search) -> None:
        """Write one greedy chain and hand it in."""
        for node in await draw_chains(search, 1, temperature=0.0):
            search.finish(node)


async def draw_chains(search: Search, n: int, temperature: float | None = None) -> list[Node]:
    """Draw ``n`` independent chains, all side by side; returns the ends of those that were completed.

    Chains that write the same share their nodes; ``count`` says how many came this way, and as many go on from there.
    Equal states are not merged, or a chain would lose its own history. A budget that is used up ends the drawing.
    """
    ends: list[Node] = []
    chains = [(search.root, n)]
    try:
        while chains:
            nodes, counts = zip(*chains, strict=True)
            children = await search.expand(nodes, counts, temperature=temperature, merge=False)
            ends += [child for child in children if child.finished]
            chains = [(child, child.count) for child in children if not child.finished]
    except BudgetReached:
        pass  # the search remembers; what is complete can still be voted on or ranked
    return ends
