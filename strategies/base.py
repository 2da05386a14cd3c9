"""The base class of strategies, and the registry.

To add one: a frozen model whose fields are the paper's hyper-parameters, with one ``async def run(search)`` that calls
nothing but the search; name it in ``STRATEGIES``, or in the entry-point group ``rksc_tot.strategies`` of your own package.
The tests in ``tests/strategies`` then run it through the contract.
"""

from __future__ import annotations

from typing import ClassVar

from rksc_tot.core.plugins.registry import Registry
from rksc_tot.core.plugins.settings import Settings
from rksc_tot.search import Search


class Strategy(Settings):
    """Decides which nodes are expanded, scored, kept and handed in. It has no state: one object serves many searches."""

    kind = "strategy"
    name: ClassVar[str] = ""

    async def run(self, search: Search) -> None:
        """Grow the tree of ``search`` and hand in complete paths with ``search.finish``.

        Returns when there is nothing left to try. BudgetReached may pass through: what was handed in until then counts.
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
