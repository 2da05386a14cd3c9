"""Jobs that read the next-token distribution after a path: for an audit, or for a label question."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.engine.base import Account, LabelRequest, LabelScores
from rksc_tot.engine.jobs.job import Job
from rksc_tot.engine.jobs.layer_readers import LayerQuestion
from rksc_tot.engine.jobs.sampler import Logits
from rksc_tot.engine.tokenization.label_trie import LogProbabilities, Prefix
from rksc_tot.policies.early_exit.cgee import Reading

SHOWN = 3  # likeliest tokens that are reported where most of the probability is outside the labels


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
        """End with no result."""
        self.end(None)

    def advance(
        self, logits: Logits, row: Mapping[Segment, int], tokens: Sequence[int], logprobs: Sequence[float]
    ) -> None:
        """End with the distribution; no token is drawn."""
        self.end(self.read(logits, row[self.base]))

    def read(self, logits: Logits, row: int) -> object:
        """Log-probabilities ``[V]`` of a row, in double precision."""
        return logits.logprobs(row)


class Labels(Protocol):
    """How the probabilities of labels are read: from their spellings, or from the classes of a head.

    :class:`~rksc_tot.engine.tokenization.label_trie.LabelTrie` reads spellings.
    """

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the order of the request."""
        ...

    @property
    def question(self) -> list[int]:
        """Tokens of the question; the labels are read at their end."""
        ...

    @property
    def nodes(self) -> Sequence[Prefix]:
        """Tokens after the question at whose ends a distribution is needed, parents first."""
        ...

    @property
    def first(self) -> tuple[tuple[int, ...], ...]:
        """For each label, the columns of the distribution after the question that belong to it."""
        ...

    @property
    def flat(self) -> bool:
        """Whether one distribution is enough to read all labels."""
        ...

    def read(self, logprobs: LogProbabilities) -> tuple[list[float], float]:
        """Probabilities of the labels, not normalised, and of anything else."""
        ...

    def likeliest(self, logprobs: LogProbabilities, most: int) -> list[tuple[Prefix, float]]:
        """The likeliest first tokens of any answer, at most ``most``, with their probabilities."""
        ...


class Labelling(Distribution):
    """One :class:`LabelRequest`.

    The tokens of the question and of the labels' spellings are scratch on the path. One pass computes the question. If labels
    have several tokens, a second pass computes the inner tokens of all spellings. With early exit, labels are read between the
    layers of the first pass. A question that is decided there has no second pass.

    Attributes
    ----------
    trie
        How the labels are read, as spellings after the question.
    layers
        Decoder layers of the model.
    decode
        Returns the text of tokens.
    exit, trace
        As in the request.
    between_layers
        Whether labels are read between layers (early exit or trace), in the pass that computes the question.
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
        trie: Labels,
        layers: int,
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        """``at``: the end of the path that the question follows."""
        super().__init__(tree, tree.walk(at, trie.question), account, prompt_end, at.end, request.audit)
        self.trie = trie
        self.layers = layers
        self.decode = decode
        self.exit = request.exit
        self.trace = request.trace
        self.between_layers = self.trace or self.exit is not None
        self.leaves_from = at.end if self.between_layers else None
        self.nodes: dict[Prefix, Segment] = {(): self.base}
        for node in trie.nodes[1:]:
            self.nodes[node] = tree.walk(self.nodes[node[:-1]], node[-1:])
            tree.hold(self.nodes[node])
            self.tips.append(self.nodes[node])
        self._seen: list[Reading] = []

    def wanted(self) -> list[Segment]:
        """The question; after its logits are known the spellings, longest first, so that a block includes their prefixes."""
        return [self.base] if self.lacks(self.base) else self.tips[:0:-1]

    def lacks(self, tip: Segment) -> bool:
        """Whether a pass is needed: logits are missing, or labels are read between layers."""
        return self.between_layers or super().lacks(tip)

    def advance(
        self, logits: Logits, row: Mapping[Segment, int], tokens: Sequence[int], logprobs: Sequence[float]
    ) -> None:
        """Read the probabilities of whole labels."""
        exact = all(segment.kv.exact and not segment.uses_borrowed_kv for segment in self.nodes.values())

        def after(node: Prefix, ids: Sequence[int] | slice) -> Tensor:
            return logits.logprobs(row[self.nodes[node]], ids if isinstance(ids, slice) else list(ids))

        found, outside = self.trie.read(after)
        inside = sum(found)
        shares = [p / inside for p in found] if inside > 0 else [1 / len(found)] * len(found)
        trace = (*(tuple(reading) for _, reading in self._seen), tuple(shares)) if self.trace else None
        outside = outside if inside > 0 else 1.0
        likeliest = self.trie.likeliest(after, SHOWN) if outside > 0.5 else []
        shown = tuple((self.decode(tokens), probability) for tokens, probability in likeliest)
        self._answer(self.layers, shares, outside, exact, trace, shown)

    def awaited(self) -> Collection[Segment]:
        """No segments while labels are read between layers; else as in :class:`Job`."""
        return () if self.between_layers else super().awaited()

    def layer_question(self, rows: range, exact: bool) -> LayerQuestion | None:
        """The question that the layer hook of a pass reads: the first tokens of the labels."""
        if not self.between_layers:
            return None
        return LayerQuestion(
            rows, self.trie.first, self.layers, self.exit, self.trace, exact and not self.base.uses_borrowed_kv
        )

    def answer(self, question: LayerQuestion) -> None:
        """End with the reading of a layer, unless labels must be read beyond their first tokens."""
        layer, shares = question.seen[-1]
        if question.left or self.trie.flat:
            trace = tuple(tuple(reading) for _, reading in question.seen) if self.trace else None
            self._answer(layer, shares, question.outside, question.exact, trace)
            return
        self._seen = question.seen[:-1]
        self.between_layers, self.leaves_from = False, None

    def _answer(
        self,
        layer: int,
        shares: Sequence[float],
        outside: float | None,
        exact: bool,
        trace: tuple[tuple[float, ...], ...] | None,
        likeliest: tuple[tuple[str, float], ...] = (),
    ) -> None:
        """End with label probabilities. ``layer``: where they were read; ``exact``: whether from full KV."""
        if not self.audit:
            self.account.ledger.book_answer(layer, self.layers, exact=exact)
        labels = dict(zip(self.trie.labels, shares, strict=True))
        self.end(LabelScores(labels, outside, layer if self.between_layers else None, trace, exact, likeliest))

    def close(self) -> None:
        """Release all segments; drop the KV of the spellings and of the question."""
        self.leave()
        self.tree.drop(self.base)
        floor = self.scratch_from or 0
        for segment in (*self.nodes.values(),)[::-1]:
            if segment.start >= floor:  # a question that merges with its labels has no tokens of its own
                self.tree.discard(segment, floor)
