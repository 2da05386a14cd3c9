"""The base class of strategies.

To add a strategy, write a frozen model whose fields are the paper's hyper-parameters, with one method ``async def run(search)``
that calls the search only. Add it to ``STRATEGIES`` in ``registry.py``, or to the entry-point group ``rksc_tot.strategies`` of
your package. The contract tests in ``tests/strategies`` then cover it.
"""

from __future__ import annotations

from typing import ClassVar

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
