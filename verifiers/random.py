"""Random scores, a control for comparisons."""

from __future__ import annotations

from collections.abc import Sequence

from rksc_tot.core.tree import Node
from rksc_tot.search import Search
from rksc_tot.search.scoring import Score
from rksc_tot.verifiers.base import Verifier


class RandomScores(Verifier):
    """Random: uniform scores, 0..1, from a random stream named by the seed and the node's branch."""

    name: str = "random"

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """One random number for each node."""
        return [search.rng("random verifier", node.branch).random() for node in nodes]
