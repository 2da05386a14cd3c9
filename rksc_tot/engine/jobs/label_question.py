"""Jobs that read the next-token distribution after a path: an audit's distribution, and a label question."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.engine.base import Account, LabelRequest, LabelScores
from rksc_tot.engine.jobs.job import Job
from rksc_tot.engine.jobs.layer_readers import LayerQuestion
from rksc_tot.engine.jobs.sampler import Logits
from rksc_tot.engine.tokenization.label_trie import LabelTrie, Prefix
from rksc_tot.policies.early_exit.cgee import Reading


class Distribution(Job):
    """The next-token distribution after a path. ``audit``: the path is an isolated copy, which is dropped with the job."""

    def __init__(
        self,
        tree: PrefixTree,
        base: Segment,
        account: Account,
        prompt_end: int,
        scratch_from: int | None = None,
        audit: bool = False,
    ) -> None:
        super().__init__(tree, base, account, prompt_end, 0 if audit else scratch_from)
        self.audit = self.exact = audit
        self.tips = [base]
        tree.hold(base)

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
    """One :class:`LabelRequest`.

    The question and the spellings of the labels are scratch on the path. One pass computes the question; where labels have more
    than one token, a second one computes the inner tokens of all spellings. A label that was decided between the layers of the
    first pass (*watched*) has no second one.

    Attributes
    ----------
    trie
        The spellings of the labels, as tokens after the question.
    layers
        Decoder layers of the model.
    exit, trace
        As in the request.
    watched
        Whether the labels are to be read between the layers.
    nodes
        The segments at whose ends the next token is read, by node of the trie.
    """

    asks = True

    def __init__(
        self,
        tree: PrefixTree,
        at: Segment,
        account: Account,
        prompt_end: int,
        request: LabelRequest,
        trie: LabelTrie,
        layers: int,
    ) -> None:
        """``at``: the end of the path that is asked about."""
        super().__init__(tree, tree.walk(at, trie.question), account, prompt_end, at.end, request.audit)
        self.trie = trie
        self.layers = layers
        self.exit = request.exit
        self.trace = request.trace
        self.watched = self.trace or self.exit is not None
        self.leaves_from = at.end if self.watched else None
        self.nodes: dict[Prefix, Segment] = {(): self.base}
        for node in trie.nodes[1:]:
            self.nodes[node] = tree.walk(self.nodes[node[:-1]], node[-1:])
            tree.hold(self.nodes[node])
            self.tips.append(self.nodes[node])
        self._seen: list[Reading] = []

    def wanted(self) -> list[Segment]:
        """The question; once it has been answered, the spellings, longest first, so that one block takes all on the way."""
        return [self.base] if self.lacks(self.base) else self.tips[:0:-1]

    def lacks(self, tip: Segment) -> bool:
        """Whether logits are missing. The pass itself answers what is read between its layers."""
        return self.watched or super().lacks(tip)

    def advance(
        self, logits: Logits, row: Mapping[Segment, int], tokens: Sequence[int], logprobs: Sequence[float]
    ) -> None:
        """Read the probabilities of whole labels."""
        exact = all(segment.kv.exact and not segment.uses_borrowed_kv for segment in self.nodes.values())
        found, outside = self.trie.read(lambda node, ids: logits.logprobs(row[self.nodes[node]], list(ids)))
        inside = sum(found)
        shares = [p / inside for p in found] if inside > 0 else [1 / len(found)] * len(found)
        trace = (*(tuple(reading) for _, reading in self._seen), tuple(shares)) if self.trace else None
        self._answer(self.layers, shares, outside if inside > 0 else 1.0, exact, trace)

    def awaited(self) -> Collection[Segment]:
        """Nothing while the labels are read between the layers."""
        return () if self.watched else super().awaited()

    def layer_question(self, rows: range, exact: bool) -> LayerQuestion | None:
        """The first tokens of the labels as a question to the layers of a pass."""
        if not self.watched:
            return None
        return LayerQuestion(
            rows, self.trie.first, self.layers, self.exit, self.trace, exact and not self.base.uses_borrowed_kv
        )

    def answer(self, question: LayerQuestion) -> None:
        """End with what the layers of a pass said, unless more than the first tokens of the labels is to be read."""
        layer, shares = question.seen[-1]
        if question.left or self.trie.flat:
            trace = tuple(tuple(reading) for _, reading in question.seen) if self.trace else None
            self._answer(layer, shares, question.outside, question.exact, trace)
            return
        self._seen = question.seen[:-1]
        self.watched, self.leaves_from = False, None

    def _answer(
        self,
        layer: int,
        shares: Sequence[float],
        outside: float | None,
        exact: bool,
        trace: tuple[tuple[float, ...], ...] | None,
    ) -> None:
        """End with label probabilities; note after how many layers they were read, and whether they are those of the
        full path.
        """
        if not self.audit:
            self.account.ledger.book_answer(layer, self.layers, exact=exact)
        labels = dict(zip(self.trie.labels, shares, strict=True))
        self.end(LabelScores(labels, outside, layer if self.watched else None, trace, exact))

    def close(self) -> None:
        """Let go of the tree; drop the rows of the spellings and of the question."""
        self.leave()
        self.tree.drop(self.base)
        floor = self.scratch_from or 0
        for segment in (*self.nodes.values(),)[::-1]:
            if segment.start >= floor:  # a question that merges with its labels has no tokens of its own
                self.tree.discard(segment, floor)
