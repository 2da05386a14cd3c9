"""The control: what a search is worth without a verifier."""

from __future__ import annotations

from collections.abc import Sequence

from rksc_tot.core.tree import Node
from rksc_tot.search import Search
from rksc_tot.search.scoring import Score
from rksc_tot.verifiers.base import Verifier


class RandomScores(Verifier):
    """Random: uniform scores in 0..1, drawn from the run's seed and the node's place in the tree."""

    name: str = "random"

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """One draw a node."""
        return [search.rng("random verifier", node.branch).random() for node in nodes]
