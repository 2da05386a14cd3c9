"""Search strategies, one paper a file."""

from rksc_tot.strategies.base import Strategy
from rksc_tot.strategies.beam import Beam
from rksc_tot.strategies.best_of_n import BestOfN
from rksc_tot.strategies.bfs import BFS
from rksc_tot.strategies.chain import Chain
from rksc_tot.strategies.dfs import DFS
from rksc_tot.strategies.registry import STRATEGIES
from rksc_tot.strategies.self_consistency import SelfConsistency

__all__ = ["BFS", "DFS", "STRATEGIES", "Beam", "BestOfN", "Chain", "SelfConsistency", "Strategy"]
