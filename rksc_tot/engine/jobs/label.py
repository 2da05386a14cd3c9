"""Jobs that read what the model says after a path, and write nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.engine.base import Account, LabelRequest, LabelScores
from rksc_tot.engine.jobs.job import Job
from rksc_tot.engine.jobs.layer_readers import LayerQuestion
from rksc_tot.engine.jobs.sampler import Logits


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

    def advance(
        self, logits: Logits, row: Mapping[Segment, int], tokens: Sequence[int], logprobs: Sequence[float]
    ) -> None:
        """Read the logits; nothing is drawn."""
        self.end(self.read(logits, row[self.base]))

    def read(self, logits: Logits, row: int) -> object:
        """What is made of a row of logits: log-probabilities ``[V]`` in double precision."""
        return logits.logprobs(row)


class Labelling(Distribution):
    """One :class:`LabelRequest`: what comes after a question, which is scratch and begins at ``asked_from``.

    ``labels``: the token ids of the spellings of each. ``layers``: of the model. ``watched``: it is read between the layers.
    """

    asks = True

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
        self.leaves_from = asked_from if self.watched else None

    def lacks(self, tip: Segment) -> bool:
        """Whether logits are missing; what is watched is answered by the pass itself."""
        return self.watched or super().lacks(tip)

    def read(self, logits: Logits, row: int) -> LabelScores:
        """Aggregate the spellings of each label; what fell elsewhere is ``outside``."""
        exact = self.base.exact and not self.base.borrows
        self.book_answer(self.layers, exact)
        mass = {label: float(logits.logprobs(row, ids).exp().sum()) for label, ids in self.labels.items()}
        inside = sum(mass.values())
        if inside <= 0:
            return LabelScores(dict.fromkeys(mass, 1 / len(mass)), 1.0, exact=exact)
        return LabelScores({label: p / inside for label, p in mass.items()}, max(0.0, 1 - inside), exact=exact)

    def awaited(self) -> Collection[Segment]:
        """Nothing where the labels are read between the layers."""
        return () if self.watched else super().awaited()

    def layer_question(self, rows: range, exact: bool) -> LayerQuestion | None:
        """The labels as a question to the layers of a pass."""
        labels = tuple(map(tuple, self.labels.values()))
        exact = exact and not self.base.borrows
        return LayerQuestion(rows, labels, self.layers, self.exit, self.trace, exact) if self.watched else None

    def answer(self, question: LayerQuestion) -> None:
        """End with what the layers of a pass said."""
        layer, probabilities = question.seen[-1]
        trace = tuple(tuple(reading) for _, reading in question.seen) if self.trace else None
        labels = dict(zip(self.labels, probabilities, strict=True))
        self.book_answer(layer, question.exact)
        self.end(LabelScores(labels, question.outside, layer, trace, question.exact))

    def book_answer(self, layer: int, exact: bool) -> None:
        """Note after how many layers the answer was read, and whether it is that of the full path."""
        if self.aside:
            return
        ledger = self.account.ledger
        ledger.scores.acted += not exact
        ledger.verifier_layers += layer
        ledger.verifier_layers_full += self.layers
        ledger.layer_exit.acted += layer < self.layers
