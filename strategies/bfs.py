"""Tree of Thoughts, breadth first: Algorithm 1 of Yao et al. 2023, https://arxiv.org/abs/2305.10601."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from rksc_tot.search import Search
from rksc_tot.strategies.base import Strategy


class BFS(Strategy):
    """ToT-BFS: expands the ``b`` best states of each level by ``k`` thoughts.

    Complete paths compete with the unfinished ones of their level, and are handed in if they are kept. The answer is that of
    the complete path with the best score. Answers are not checked during the search.
    """

    name: ClassVar[str] = "bfs"
    b: int = Field(5, ge=1, le=1_000_000, description="breadth limit: states kept a level")
    k: int = Field(5, ge=1, le=1_000_000, description="thoughts generated after each state")

    async def run(self, search: Search) -> None:
        """Algorithm 1: S_t is ``frontier``, S'_t is ``children``, V_t are the scores."""
        frontier = [search.root]
        while frontier:
            children = await search.expand(frontier, self.k)
            await search.score(children)
            kept = search.keep(children, self.b)
            for node in kept:
                if node.finished:
                    search.finish(node)
            frontier = [node for node in kept if not node.finished]
