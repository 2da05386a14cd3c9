"""Thoughts written upon reduced KV: a seeded share of them is looked at upon all of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from rksc_tot.engine.base import Account, KeepingEngine
from rksc_tot.errors import CacheError
from rksc_tot.tree import Node

AUDIT = 0.03
"""Share that is audited where nothing else is said."""
ENOUGH = 4  # audited thoughts before anything is said of them


class Reductions:
    """Audits what a keep policy does to a search.

    Parameters
    ----------
    audit : float
        Share of the thoughts that are not exact that is audited, 0..1.
    engine, account
        Of the search.
    rng : callable
        The random stream of the search by that name.
    warn : callable
        Where it is told, as topic and message, that the audit finds much harm.
    """

    def __init__(
        self,
        audit: float,
        engine: KeepingEngine,
        account: Account,
        rng: Callable[..., random.Random],
        warn: Callable[[str, str], None],
    ) -> None:
        self._audit, self._engine, self._account, self._rng, self._warn = audit, engine, account, rng, warn
        self._seen = False

    async def audit(self, nodes: Sequence[Node]) -> None:
        """Compare what comes after new thoughts with what would upon their full paths; the first of a search always."""
        chosen = [node for node in nodes if not node.exact and node._handle is not None and self._draws(node)]
        if not chosen:
            return
        row = self._account.ledger.keep
        try:
            found = await self._engine.against_full([node._handle for node in chosen], self._account)
        except CacheError:  # no room for the full path: that is why it was reduced
            self._warn("audit", "reduced KV was not audited: there is no room for the full KV of a path beside it")
            return
        for pair in found:
            if pair is not None:
                row.audited += 1
                row.kl += pair[0]
                row.flips += not pair[1]
        if row.audited >= ENOUGH and 2 * row.flips > row.audited:
            self._warn(
                "keep",
                f"after {row.flips} of {row.audited} audited thoughts the model goes on otherwise than upon all their KV; let"
                " the keep policy keep more",
            )

    def _draws(self, node: Node) -> bool:
        first, self._seen = not self._seen and self._audit > 0, True
        return first or self._rng("audit", "keep", node.branch).random() < self._audit
