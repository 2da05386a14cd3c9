"""Chain of thought: Wei et al. 2022, https://arxiv.org/abs/2201.11903."""

from __future__ import annotations

from typing import ClassVar

from rksc_tot.core.budget import BudgetReached
from rksc_tot.core.tree import Node
from rksc_tot.search import Search
from rksc_tot.strategies.base import Strategy


class Chain(Strategy):
    """Chain of thought: one greedy path."""

    name: ClassVar[str] = "cot"

    async def run(self, search: Search) -> None:
        """Generate one greedy chain and hand it in."""
        for node in await generate_chains(search, 1, temperature=0.0):
            search.finish(node)


async def generate_chains(search: Search, n: int, temperature: float | None = None) -> list[Node]:
    """Generate ``n`` independent chains in parallel. Returns the last nodes of the complete ones.

    Chains with equal texts share their nodes; ``count`` is the number of chains through a node. Equal states are not merged, so
    that each chain keeps its own path. When the budget is used up, the chains completed so far are returned.
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
        pass  # the complete chains can still be ranked; the search keeps the reason
    return ends
