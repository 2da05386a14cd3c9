"""Jobs that read what the model says after a path, and write nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.engine.base import Account, LabelRequest, LabelScores
from rksc_tot.engine.jobs.job import Job
from rksc_tot.engine.jobs.sampler import Logits
from rksc_tot.policies.early_exit.cgee import Reading


class Distribution(Job):
    """The next-token distribution after a path. ``aside``: the path was sprouted for an audit, and goes with it."""

    def __init__(
        self, tree: PrefixTree, base: Segment, account: Account, scratch_from: int | None = None, aside: bool = False
    ) -> None:
        super().__init__(tree, base, account, 0 if aside else scratch_from)
        self.aside = self.exact = aside
        tree.hold(base)

    def tips(self) -> list[Segment]:
        return [self.base]

    def expire(self) -> None:
        """End without an answer."""
        self.end(None)

    def read(self, logits: Logits, row: int) -> object:
        """What is made of a row of logits: log-probabilities ``[V]`` in double precision."""
        return logits.logprobs(row)


class Labelling(Distribution):
    """One :class:`LabelRequest`: what comes after a question, which is scratch and begins at ``asked_from``.

    ``labels``: the token ids of the spellings of each. ``layers``: of the model. ``watched``: it is read between the layers.
    """

    def __init__(
        self,
        tree: PrefixTree,
        base: Segment,
        account: Account,
        asked_from: int,
        request: LabelRequest,
        labels: Mapping[str, list[int]],
        layers: int,
    ) -> None:
        super().__init__(tree, base, account, asked_from, request.aside)
        self.asked_from = asked_from
        self.labels = labels
        self.layers = layers
        self.exit = request.exit
        self.trace = request.trace
        self.watched = self.trace or self.exit is not None

    def lacks(self, tip: Segment) -> bool:
        """Whether logits are missing; what is watched is answered by the pass itself."""
        return self.watched or super().lacks(tip)

    def read(self, logits: Logits, row: int) -> LabelScores:
        """Aggregate the spellings of each label; what fell elsewhere is ``outside``."""
        exact = self.base.exact and not self.base.borrows
        self.book(self.layers, exact)
        mass = {label: float(logits.logprobs(row, ids).exp().sum()) for label, ids in self.labels.items()}
        inside = sum(mass.values())
        if inside <= 0:
            return LabelScores(dict.fromkeys(mass, 1 / len(mass)), 1.0, exact=exact)
        return LabelScores({label: p / inside for label, p in mass.items()}, max(0.0, 1 - inside), exact=exact)

    def reads(self, layer: int) -> bool:
        """Whether the labels are read after this layer of a watched pass."""
        return self.trace or layer == self.layers or (self.exit is not None and self.exit.checks(layer))

    def decided(self, seen: Sequence[Reading]) -> bool:
        """Whether the pass may stop after the last of these layers."""
        return not self.trace and self.exit is not None and seen[-1][0] < self.layers and self.exit.decided(seen)

    def book(self, layer: int, exact: bool) -> None:
        """Note after how many layers the answer was read, and whether it is that of the full path."""
        if self.aside:
            return
        ledger = self.account.ledger
        ledger.scores.acted += not exact
        ledger.verifier_layers += layer
        ledger.verifier_layers_full += self.layers
        ledger.layer_exit.acted += layer < self.layers
