"""The strategies by name. An installed package adds one through the entry-point group ``rksc_tot.strategies``."""

from __future__ import annotations

from rksc_tot.core.plugins.registry import Registry
from rksc_tot.strategies.base import Strategy

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
