"""CGEE in one search: layer exit, verify skip and rival stop, and their audits."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rksc_tot.core.ledger import Ledger, Lossy
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import LabelRequest, LabelScores, Reader
from rksc_tot.policies.early_exit.cgee import RivalStop, confidence, exit_layer, likeliest, survivors
from rksc_tot.policies.early_exit.fixed_sequence_testing import alarm
from rksc_tot.policies.ranking import rounded

if TYPE_CHECKING:
    from rksc_tot.search.approximate.rksc import RKSC

Bounds = tuple[float, float]
"""The lowest and highest score of a verifier."""


@dataclass
class EarlyExit:
    """The early decisions of one search.

    Parameters
    ----------
    rksc : RKSC
        With its calibration loaded.
    reader
        The engine that answers the verifier's label requests.
    ledger
        Of the search.
    rng : callable
        Returns the random stream of the search with the given name; it decides for each node whether to audit.
    warn : callable
        Called with topic and message of a warning, if the calibration does not hold.
    """

    rksc: RKSC
    reader: Reader
    ledger: Ledger
    rng: Callable[..., random.Random]
    warn: Callable[[str, str], None]
    _in_full: set[int] = field(default_factory=set)  # nodes of audited groups, which are scored without layer exit
    _uncut: set[int] = field(
        default_factory=set
    )  # parents whose branches were generated without rival stop, for an audit

    def __post_init__(self) -> None:
        held = self.rksc.held
        if held is not None and not held.accepted:
            self.warn(
                "calibration", f"the calibration has no accepted rule; layer exit is off because {held.exit.refused}"
            )

    # -- layer exit --------------------------------------------------------------------------------------------------

    def allow_exit(self, node: Node, request: LabelRequest) -> LabelRequest:
        """Add the exit rule to a request, or the trace for an audit. Unchanged if the rule was made for other labels."""
        rule, held = self.rksc.exit_rule, self.rksc.held
        if rule is None or held is None or request.labels != held.labels or node.id in self._in_full or not node.exact:
            return request
        if self._audited("layer exit", node):
            return replace(request, trace=True)
        return replace(request, exit=rule)

    def audit_exit(self, reply: LabelScores) -> None:
        """Count whether the exit rule would have changed a traced reply."""
        rule, trace = self.rksc.exit_rule, reply.trace
        if rule is None or trace is None:
            return
        layer = exit_layer(rule, trace)
        if layer is not None:
            self.ledger.layer_exit.acted += 1
            flipped = likeliest(trace[layer - 1]) != likeliest(trace[-1])
            self._count(self.ledger.layer_exit, flipped, "the label read at a layer differs from that of the full pass")

    # -- verify skip -------------------------------------------------------------------------------------------------

    def skip(
        self, nodes: Sequence[Node], bounds: Callable[[Node], Bounds | None], siblings: Callable[[Node], int]
    ) -> tuple[list[tuple[Node, float]], list[list[Node]]]:
        """Find the siblings among ``nodes`` that need no verifier.

        The score of a skipped node is its confidence, scaled to the verifier's range: lowest + (highest - lowest) x
        confidence. The guarantee of a calibration is about which sibling is best, not about comparisons with other nodes.
        Only whole groups are skipped: ``siblings`` returns the number of siblings of a node, itself included.

        Returns
        -------
        tuple
            The skipped nodes with their scores, and the groups that the verifier scores for an audit.
        """
        rule = self.rksc.skip_rule
        skipped: list[tuple[Node, float]] = []
        audited: list[list[Node]] = []
        for group in _siblings(nodes) if rule is not None else ():
            confidences = [confidence(node.logprobs) for node in group]
            plain = all(node.logprobs and node.exact for node in group) and len(group) == siblings(group[0])
            if rule is None or not plain or group[0].parent in self._uncut or not rule.decisive(confidences):
                continue
            ranges = [bounds(node) for node in group]
            if any(found is None for found in ranges):
                continue
            self.ledger.verify_skip.acted += 1
            if self._audited("verify skip", group[0]):
                audited.append(group)
                self._in_full.update(node.id for node in group)
                continue
            for node, trust, found in zip(group, confidences, ranges, strict=True):
                low, high = found or (0.0, 0.0)
                skipped.append((node, low + (high - low) * trust))
            self.ledger.verifier_layers_full += len(group) * self.reader.layers
        return skipped, audited

    def review(self, audited: Sequence[Sequence[Node]]) -> None:
        """Compare the confidences of audited groups with the scores of the verifier."""
        for group in audited:
            scores = [node.score for node in group if node.score is not None]
            if len(scores) < len(group):
                continue  # the time ran out, or the verifier failed on one
            top = likeliest([confidence(node.logprobs) for node in group])
            flipped = rounded(scores[top]) < rounded(max(scores))
            self._count(self.ledger.verify_skip, flipped, "the most confident branch is not the verifier's best")

    # -- rival stop --------------------------------------------------------------------------------------------------

    def rivals(self, node: Node) -> RivalStop | None:
        """The rule by which branches after a node may stop; None if it is off, or if all are generated for an audit."""
        rule = self.rksc.rival_rule
        if rule is not None and self._audited("rival stop", node):
            self._uncut.add(node.id)
            return None
        return rule

    def review_rivals(self, nodes: Sequence[Node]) -> None:
        """Compare fully generated branches of an audit with those that the rule would have kept."""
        rule = self.rksc.rival_rule
        for group in _siblings(nodes):
            scores = [node.score for node in group if node.score is not None]
            parent = group[0].parent
            if rule is None or parent not in self._uncut or len(scores) < len(group):
                continue
            self._uncut.remove(parent)
            ended = survivors(rule, [node.logprobs for node in group])
            if ended is not None:
                self.ledger.rival_stop.acted += 1
                flipped = rounded(max(scores[n] for n in ended)) < rounded(max(scores))
                self._count(self.ledger.rival_stop, flipped, "rival stop would have stopped the verifier's best branch")

    # -- the audit ---------------------------------------------------------------------------------------------------

    def _audited(self, what: str, node: Node) -> bool:
        return self.rng("audit", what, node.branch).random() < self.rksc.audit

    def _count(self, row: Lossy, flipped: bool, how: str) -> None:
        row.audited += 1
        row.flips += flipped
        held = self.rksc.held
        if flipped and held is not None and alarm(row.audited, row.flips, held.delta, held.alpha):
            self.warn(
                how,
                f"the calibration does not hold here: {row.flips} of {row.audited} audited decisions differ, more than the "
                f"allowed {held.delta:.2%} ({how}); calibrate on such problems, or search without it",
            )


def _siblings(nodes: Sequence[Node]) -> list[list[Node]]:
    groups: dict[int | None, list[Node]] = {}
    for node in nodes:
        groups.setdefault(node.parent, []).append(node)
    return list(groups.values())
