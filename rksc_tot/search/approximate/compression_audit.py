"""Audits KV compression: a seeded share of thoughts and scores is recomputed on the full KV."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rksc_tot.core.errors import CacheError
from rksc_tot.core.ledger import ApproximateScores, CompressedKV
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import Account, CompressingEngine, LabelRequest, LabelScores

AUDIT = 0.03
"""Default share of audited thoughts and answers, 0..1."""
TINY = 1e-300  # in place of a probability of 0
ENOUGH = 4  # least number of audits before a warning


class CompressionAudit:
    """Audits the effect of a compression policy on one search.

    Parameters
    ----------
    audit : float
        Probability, 0..1, that an inexact thought, or an inexact answer to a label question, is audited.
    engine, account
        The engine and the account of the search.
    rng : callable
        Returns the random stream of the search with the given name.
    warn : callable
        Called with topic and message of a warning, if more than half of the audits differ.
    """

    def __init__(
        self,
        audit: float,
        engine: CompressingEngine,
        account: Account,
        rng: Callable[..., random.Random],
        warn: Callable[[str, str], None],
    ) -> None:
        self._audit, self._engine, self._account, self._rng, self._warn = audit, engine, account, rng, warn
        self._seen: set[str] = set()
        self._answers = 0  # inexact answers so far

    async def audit(self, nodes: Sequence[Node]) -> None:
        """Compare the next token after new inexact thoughts with that on the full KV. The first one is always audited."""
        chosen = [n for n in nodes if not n.exact and n._handle is not None and self._draws("compression", n.branch)]
        if not chosen:
            return
        counters = self._account.ledger.compression
        try:
            found = await self._engine.against_full([node._handle for node in chosen], self._account)
        except CacheError:
            self._no_room()
            return
        for pair in found:
            if pair is not None:
                counters.book_audit(pair[0], not pair[1])
        self._alarm(
            "compression",
            counters,
            "after {} of {} audited thoughts the likeliest next token differs from that on the full KV",
        )

    async def audit_scores(self, requests: Sequence[LabelRequest], replies: Sequence[LabelScores | None]) -> None:
        """Compare inexact answers to label questions with those on the full KV. The first one is always audited."""
        chosen: list[tuple[LabelRequest, LabelScores]] = []
        for request, reply in zip(requests, replies, strict=True):
            if reply is not None and not reply.exact:
                self._answers += 1
                if self._draws("scores", self._answers):
                    chosen.append((replace(request, audit=True, exit=None, trace=False), reply))
        if not chosen:
            return
        counters = self._account.ledger.scores
        try:
            full = await self._engine.label([request for request, _ in chosen], self._account)
        except CacheError:
            self._no_room()
            return
        for (_, reply), wanted in zip(chosen, full, strict=True):
            if wanted is not None:
                there, got = wanted.probabilities, reply.probabilities
                flipped = max(there, key=there.__getitem__) != max(got, key=got.__getitem__)
                counters.book_audit(_divergence(there, got), flipped)
        self._alarm(
            "scores",
            counters,
            "{} of {} audited answers to label questions differ from those on the full KV",
        )

    def _draws(self, what: str, which: object) -> bool:
        first = what not in self._seen and self._audit > 0
        self._seen.add(what)
        return first or self._rng("audit", what, which).random() < self._audit

    def _no_room(self) -> None:
        """Warn that the full KV of a path does not fit beside the rest."""
        self._warn("audit", "compressed KV was not audited: the KV budget has no room for the full KV of a path")

    def _alarm(self, topic: str, row: CompressedKV | ApproximateScores, found: str) -> None:
        if row.audited >= ENOUGH and 2 * row.flips > row.audited:
            self._warn(topic, f"{found.format(row.flips, row.audited)}; let the compression policy keep more")


def _divergence(full: Mapping[str, float], got: Mapping[str, float]) -> float:
    """KL(full || got) of label probabilities, nats."""
    return sum(p * math.log(p / max(got[label], TINY)) for label, p in full.items() if p > 0)
