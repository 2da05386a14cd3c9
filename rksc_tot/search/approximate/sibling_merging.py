"""ASKS, sibling merging: a new thought that is similar to a sibling is merged into it.

Both thoughts share KV, children and score; the node counts the branches of both for votes. Merging is lossy, so a seeded
share of merges is audited: the next token after both thoughts, and the model's answer to the task's question about both.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rksc_tot.core.errors import ContextOverflow
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code
from rksc_tot.core.task import Path, Question, Task
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import Account, LabelRequest, SharingEngine
from rksc_tot.policies.early_exit.cgee import likeliest

if TYPE_CHECKING:
    from rksc_tot.policies.asks import ASKS


ENOUGH = 4  # least number of merges before a warning


class MergedSibling(NamedTuple):
    """A thought that was merged into the node ``into``. ``path``: its own path."""

    path: Path
    handle: Any
    into: Node

    @property
    def sibling(self) -> Path:
        """The path of ``into``."""
        return Path((*self.path[:-1], self.into.thought))


class SiblingMerging:
    """Finds similar siblings and audits their merging.

    Parameters
    ----------
    asks : ASKS
        α and τ.
    audit : float
        Share, 0..1, of the merges that is audited.
    task, problem, engine, account
        Of the search.
    rng : callable
        Returns the random stream of the search with the given name.
    warn : callable
        Called with topic and message of a warning, if merges lose too much.
    """

    def __init__(
        self,
        asks: ASKS,
        audit: float,
        task: Task,
        problem: Any,
        engine: SharingEngine,
        account: Account,
        rng: Callable[..., random.Random],
        warn: Callable[[str, str], None],
    ) -> None:
        self._warn = warn
        self._asks, self._audit = asks, audit
        self._task, self._problem, self._engine, self._account, self._rng = task, problem, engine, account, rng
        self._siblings: dict[int, list[Node]] = {}
        self._audited: list[MergedSibling] = []
        self._merged: Counter[int] = Counter()  # by parent

    def remember(self, node: Node) -> None:
        """Remember a new node, to compare later siblings with it."""
        self._siblings.setdefault(node.parent or 0, []).append(node)

    def most_similar(self, parent: Node, finished: bool, inside: bool, handle: Any) -> tuple[Node, float] | None:
        """The sibling most similar to the thought at ``handle`` and their σ, if σ ≥ τ; else None.

        A complete path is compared with complete paths only, an incomplete one with incomplete ones. So is a path ``inside`` a
        thinking block with such paths.
        """
        known = [
            node
            for node in self._siblings.get(parent.id, ())
            if node._handle is not None and (node.finished, node._open_block is not None) == (finished, inside)
        ]
        if not known or handle is None:
            return None
        found = self._engine.similarity(handle, [node._handle for node in known], self._asks.alpha)
        alike = [(node, s) for node, s in zip(known, found, strict=True) if s is not None and s >= self._asks.tau]
        return max(alike, key=lambda pair: (pair[1], -pair[0].id), default=None)

    def merge(self, path: Path, branch: str, handle: Any, into: Node, tokens: int) -> None:
        """Count a merge, and keep its handle for an audit or release it. The first merge of a search is always audited."""
        row = self._account.ledger.sibling
        row.book_sharing(tokens)
        self._merged[into.parent or 0] += 1
        first = row.acted == 1 and self._audit > 0  # so that every search with merges has an audit
        if first or self._rng("audit", "sibling", branch).random() < self._audit:
            self._audited.append(MergedSibling(path, handle, into))
        else:
            self._engine.release(handle)

    async def audit(self) -> None:
        """Compare audited thoughts with the nodes that they were merged into. Warn if all siblings became one node."""
        for parent, merged in self._merged.items():
            if merged >= ENOUGH and len(self._siblings.get(parent, ())) == 1:
                self._warn(
                    "siblings",
                    f"sibling merging left one of {merged + 1} thoughts after node {parent}; raise tau, now {self._asks.tau:g}",
                )
        audited, self._audited = self._audited, []
        if not audited:
            return
        try:
            there = [merge for merge in audited if merge.into._handle is not None]
            pairs = [(merge.handle, merge.into._handle) for merge in there]
            row = self._account.ledger.sibling
            labels = await self._labels(there)
            for found, (one, other) in zip(await self._engine.divergence(pairs, self._account), labels, strict=True):
                if found is None:
                    continue
                kl, top1 = found
                row.book_audit(kl, (not top1) if one is None or other is None else one != other, top1)
            if row.audited >= ENOUGH and 2 * row.top1 < row.audited:
                self._warn(
                    "sibling merging",
                    f"the next token differs after {row.audited - row.top1} of {row.audited} audited pairs of merged siblings; "
                    f"raise tau, now {self._asks.tau:g}",
                )
        finally:
            for merge in audited:
                self._engine.release(merge.handle)

    def close(self) -> None:
        """Release the thoughts that wait for an audit."""
        while self._audited:
            self._engine.release(self._audited.pop().handle)

    async def _labels(self, audited: Sequence[MergedSibling]) -> list[tuple[int | None, int | None]]:
        """The model's likeliest label after both thoughts of each merge; None without a question."""
        requests = [
            LabelRequest(handle, question.text, tuple(question.labels))
            for merge in audited
            for handle, path in ((merge.handle, merge.path), (merge.into._handle, merge.sibling))
            if (question := self._question(path)) is not None
        ]
        if len(requests) < 2 * len(audited):
            return [(None, None)] * len(audited)
        try:
            replies = await self._engine.label(requests, self._account)
        except ContextOverflow:
            return [(None, None)] * len(audited)
        chosen = [None if reply is None else likeliest(list(reply.probabilities.values())) for reply in replies]
        return list(zip(chosen[::2], chosen[1::2], strict=True))

    def _question(self, path: Path) -> Question | None:
        try:
            with calling_user_code("question"):
                return self._task.question(self._problem, path)
        except UserCodeError:
            return None
