"""The base class and the registry of strategies.

To add a strategy, write a frozen model whose fields are the paper's hyper-parameters, with one method ``async def run(search)``
that calls the search only. Add it to ``STRATEGIES``, or to the entry-point group ``rksc_tot.strategies`` of your package. The
contract tests in ``tests/strategies`` then cover it.
"""

from __future__ import annotations

from typing import ClassVar

from rksc_tot.core.plugins.registry import Registry
from rksc_tot.core.plugins.settings import Settings
from rksc_tot.search import Search


class Strategy(Settings):
    """Decides which nodes to expand, score, keep and finish. Strategies are stateless: one object serves many searches."""

    kind = "strategy"
    name: ClassVar[str] = ""

    async def run(self, search: Search) -> None:
        """Expand the tree of ``search`` and hand in complete paths with ``search.finish``, until nothing is left to try.

        BudgetReached need not be caught: complete paths that were handed in before it count.
        """
        raise NotImplementedError


STRATEGIES: Registry[Strategy] = Registry(
    kind="strategy",
    base=Strategy,
    group="rksc_tot.strategies",
    built_in={
        "beam": "rksc_tot.strategies.beam:Beam",
        "best_of_n": "rksc_tot.strategies.best_of_n:BestOfN",
        "bfs": "rksc_tot.strategies.bfs:BFS",
        "cot": "rksc_tot.strategies.chain:Chain",
        "dfs": "rksc_tot.strategies.dfs:DFS",
        "self_consistency": "rksc_tot.strategies.self_consistency:SelfConsistency",
    },
)
