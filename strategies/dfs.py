"""Tree of Thoughts, depth first: Algorithm 2 of Yao et al. 2023, https://arxiv.org/abs/2305.10601."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field, field_validator

from rksc_tot.core.errors import ConfigError
from rksc_tot.search import Search
from rksc_tot.strategies.base import Strategy


class DFS(Strategy):
    """ToT-DFS: expands the most promising state first, and prunes states with scores not above ``threshold``."""

    name: ClassVar[str] = "dfs"
    k: int = Field(5, ge=1, le=1_000_000, description="thoughts generated after each state")
    threshold: float = Field(
        0.0,
        allow_inf_nan=True,
        description="v_th, in the verifier's units: states must score above it; -inf prunes none",
    )
    max_solutions: int = Field(1, ge=1, description="complete paths after which to stop")

    @field_validator("threshold")
    @classmethod
    def _is_number(cls, threshold: float) -> float:
        if math.isnan(threshold):
            raise ConfigError("strategy 'dfs': threshold is NaN", hint="give a number, or -inf to prune no state")
        return threshold

    async def run(self, search: Search) -> None:
        """Algorithm 2, with a stack instead of recursion."""
        stack, found = [search.root], 0
        while stack and found < self.max_solutions:
            node = stack.pop()
            if node.finished:
                search.finish(node)
                found += 1
                continue
            children = await search.expand([node], self.k)
            await search.score(children)
            promising = []
            for child in search.rank(children):
                if child.score is not None and child.score > self.threshold:
                    promising.append(child)
                else:
                    search.prune(child, f"value {child.score} is not above {self.threshold:g}")
            stack.extend(reversed(promising))
