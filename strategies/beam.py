"""Beam search over thoughts: self-evaluation guided beam search, Xie et al. 2023, https://arxiv.org/abs/2305.00633.

Implements the accumulated score of a path, without the paper's stochastic pruning.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rksc_tot.core.tree import Node
from rksc_tot.search import Search
from rksc_tot.strategies.base import Strategy

Total = tuple[float, int]  # sum and number of terms


class Beam(Strategy):
    """Beam search: ranks a path by all its thoughts; BFS ranks it by the last thought only.

    ``by="score"`` adds up the verifier's scores of the thoughts. ``by="likelihood"`` adds up the log-probabilities of the tokens
    and calls no verifier. ``reduce`` is their sum or their mean (length-normalised).
    """

    name: ClassVar[str] = "beam"
    b: int = Field(5, ge=1, le=1_000_000, description="beam width: paths kept a level")
    k: int = Field(5, ge=1, le=1_000_000, description="thoughts generated after each path")
    by: Literal["score", "likelihood"] = "score"
    reduce: Literal["mean", "sum"] = "mean"

    async def run(self, search: Search) -> None:
        """Extend every path of the beam and keep the best ``b`` by their totals."""
        totals: dict[int, Total] = {search.root.id: (0.0, 0)}

        def value(node: Node) -> float:
            total, count = totals[node.id]
            return total / max(count, 1) if self.reduce == "mean" else total

        beam = [search.root]
        while beam:
            children = await search.expand(beam, self.k)
            if self.by == "score":
                await search.score(children)
            totals |= {child.id: self._extended(totals[child.parent or 0], child) for child in children}
            kept = search.keep([child for child in children if self._measured(child)], self.b, key=value)
            for node in kept:
                if node.finished:
                    search.finish(node, value(node))
            beam = [node for node in kept if not node.finished]

    def _measured(self, node: Node) -> bool:
        return self.by == "likelihood" or node.score is not None

    def _extended(self, total: Total, node: Node) -> Total:
        steps = node.logprobs if self.by == "likelihood" else (node.score or 0.0,)
        return total[0] + sum(steps), total[1] + len(steps)
