"""The spellings of a question's labels, as a trie of tokens after the question.

The *spellings* of a label are the texts that count as the label. If the question ends in white space, the spelling is the label
itself. If it ends in a letter or digit, the spelling has a space before the label. Otherwise both count.

A spelling is tokenised together with the question, since a tokenizer may merge the question's last characters with it: after
"so: ", the label "yes" is the token " yes". In this case the trie begins before these characters (token healing), and the
probabilities are conditional on them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Protocol

from rksc_tot.core.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

UNREAD = "the labels cannot be read between layers"
IN_FULL = "choose labels that begin differently, or ask without early exit"
Prefix = tuple[int, ...]
"""Tokens on the way from the root of a trie to a node."""


class LogProbabilities(Protocol):
    """``logprobs(node, tokens)``: log-probabilities (nats) of tokens after a node of a trie, in double precision."""

    def __call__(self, node: Prefix, tokens: Sequence[int] | slice, /) -> Tensor:
        """The log-probabilities, in the order of ``tokens``; of all tokens for ``slice(None)``."""
        ...


@dataclass(frozen=True, eq=False)
class LabelTrie:
    """The token paths of all spellings of all labels.

    Attributes
    ----------
    labels
        The labels, in the order of the request.
    question
        Tokens of the question; the trie begins at their end.
    spellings
        Token paths of the spellings of each label. No path is empty.
    covers
        If a spelling merges with the end of the question: nodes at which the question is not complete, each with the tokens
        that complete it. Empty otherwise.
    """

    labels: tuple[str, ...]
    question: list[int]
    spellings: tuple[tuple[Prefix, ...], ...]
    covers: Mapping[Prefix, Sequence[int]]

    @cached_property
    def nodes(self) -> list[Prefix]:
        """Nodes whose next-token distribution is needed, parents first."""
        inner = {path[:n] for paths in self.spellings for path in paths for n in range(len(path))}
        return sorted({(), *inner, *self.covers}, key=len)

    @property
    def flat(self) -> bool:
        """Whether one next-token distribution is enough to read all labels."""
        return len(self.nodes) == 1 and not self.covers

    @cached_property
    def first(self) -> tuple[tuple[int, ...], ...]:
        """First tokens of the spellings of each label."""
        return tuple(tuple(sorted({path[0] for path in paths})) for paths in self.spellings)

    def check_layers(self) -> None:
        """Refuse labels that cannot be read between the layers of the question's pass.

        Raises
        ------
        ConfigError
            If two labels begin with the same token, or the whole question merges with a label.
        """
        if not self.question:
            raise ConfigError(f"the whole question merges with the labels, so {UNREAD}", hint=IN_FULL)
        owner: dict[int, str] = {}
        for label, tokens in zip(self.labels, self.first, strict=True):
            for token in tokens:
                if (other := owner.setdefault(token, label)) != label:
                    raise ConfigError(f"{other!r} and {label!r} begin with the same token, so {UNREAD}", hint=IN_FULL)

    @cached_property
    def _ends(self) -> list[dict[Prefix, list[int]]]:
        """For each label, by node: the tokens that complete one of its spellings."""
        found: list[dict[Prefix, list[int]]] = []
        for paths in self.spellings:
            ends: dict[Prefix, list[int]] = {}
            for path in sorted(paths):
                ends.setdefault(path[:-1], []).append(path[-1])
            found.append(ends)
        return found

    @cached_property
    def _longer(self) -> list[tuple[int, Prefix]]:
        """For each spelling, the longer spellings of other labels (by index) that begin with it, shortest first."""
        owner = {path: n for n, paths in enumerate(self.spellings) for path in paths}
        found = []
        for path, label in owner.items():
            shorter = next((owner[path[:n]] for n in range(len(path) - 1, 0, -1) if path[:n] in owner), label)
            if shorter != label:
                found.append((shorter, path))
        return found

    def read(self, logprobs: LogProbabilities) -> tuple[list[float], float]:
        """Probabilities of the labels, not normalised, and of all other texts, given the question.

        The probability of a label is that of all texts that begin with one of its spellings, without texts that begin with a
        longer label ("good" and "good enough").

        Parameters
        ----------
        logprobs : callable
            ``logprobs(node, tokens)``: log-probabilities (nats) of tokens after one of :attr:`nodes`, in double precision.
        """
        reached = self._reach(logprobs)

        def mass(node: Prefix, tokens: Sequence[int]) -> float:
            return float((logprobs(node, tokens) + reached[node]).exp().sum())

        found = [sum(mass(node, tokens) for node, tokens in ends.items()) for ends in self._ends]
        for shorter, path in self._longer:
            found[shorter] = max(0.0, found[shorter] - mass(path[:-1], path[-1:]))
        given = sum(mass(node, tokens) for node, tokens in self.covers.items()) if self.covers else 1.0
        if given <= 0:
            return [0.0] * len(found), 1.0
        found = [p / given for p in found] if self.covers else found
        return found, max(0.0, 1 - sum(found))

    def likeliest(self, logprobs: LogProbabilities, most: int) -> list[tuple[Prefix, float]]:
        """The likeliest first tokens of an answer, best first: tokens after :attr:`question`, and their probability given it.

        ``logprobs`` is as in :meth:`read`, and also takes ``slice(None)`` for all tokens.
        """
        reached = self._reach(logprobs)
        found: list[tuple[Prefix, float]] = []
        given = 0.0
        options: Mapping[Prefix, Sequence[int] | slice] = self.covers or {(): slice(None)}
        for node, tokens in options.items():
            masses = (logprobs(node, tokens) + reached[node]).exp()
            given += float(masses.sum())
            best = masses.topk(min(most, len(masses)))
            for at, probability in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                found.append(((*node, at if isinstance(tokens, slice) else tokens[at]), probability))
        found.sort(key=lambda option: -option[1])
        return [(tokens, probability / given) for tokens, probability in found[:most]] if given > 0 else []

    def _reach(self, logprobs: LogProbabilities) -> dict[Prefix, float]:
        """The log-probability of each node."""
        reached: dict[Prefix, float] = {(): 0.0}
        for node in self.nodes[1:]:
            reached[node] = reached[node[:-1]] + float(logprobs(node[:-1], node[-1:])[0])
        return reached


def label_trie(
    encode: Callable[[str], list[int]], question: str, labels: Sequence[str], pieces: Pieces, unknown: int | None = None
) -> LabelTrie:
    """The trie of labels after a question.

    Parameters
    ----------
    encode : callable
        Returns the tokens of a text in place of the question.
    question : str
        Text of the question.
    labels : sequence of str
        Two or more.
    pieces : Pieces
        Raw texts of the model's tokens.
    unknown : int, optional
        The token for text that the tokenizer cannot encode.

    Raises
    ------
    EngineError
        If labels are not two or more different texts, or the tokenizer cannot encode one, or encodes two of them alike.
    """
    check_labels(labels)
    if not (asked := encode(question)):
        raise EngineError("the question is empty", hint="ask something")
    written: dict[Prefix, str] = {}
    for label, space in product(labels, _spaces(question[-1:])):
        tokens = tuple(encode(question + space + label.lstrip()))
        if unknown is not None and tokens.count(unknown) > asked.count(unknown):
            continue
        if (other := written.setdefault(tokens, label)) != label:
            raise EngineError(
                f"the labels {other!r} and {label!r} are the same tokens", hint="choose labels that differ in more"
            )
    common = min((_common(asked, tokens) for tokens in written), default=0)
    paths = {label: tuple(path[common:] for path, of in written.items() if of == label) for label in labels}
    for label, found in paths.items():
        if not found or not all(found):
            raise EngineError(f"the tokenizer cannot encode the label {label!r}", hint="choose another label")
    rest = tuple(asked[common:])
    inner = {path[:n] for found in paths.values() for path in found for n in range(len(path))}
    covers = pieces.covers(rest, inner | {rest[:n] for n in range(len(rest))}) if rest else {}
    return LabelTrie(tuple(labels), asked[:common], tuple(paths.values()), covers)


def check_labels(labels: Sequence[str]) -> None:
    """Refuse labels that are not two or more different texts."""
    if len(labels) < 2 or len({label.strip() for label in labels}) < len(labels) or not all(map(str.strip, labels)):
        raise EngineError(f"labels {list(labels)} are not two or more different words", hint="name each answer once")


def _spaces(after: str) -> tuple[str, ...]:
    """Possible texts between a question that ends in the character ``after`` and a label."""
    if after.isspace():
        return ("",)
    if after.isalnum() and unicodedata.east_asian_width(after) not in "WF":  # CJK scripts have no spaces
        return (" ",)
    return ("", " ")


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((n for n, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))


class Pieces:
    """The raw texts of a model's tokens, in which a space has a character of its own. ``size``: size of the vocabulary."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, size: int) -> None:
        self._tokenizer = tokenizer
        self._size = size
        self._starting: dict[str, list[int]] = {}

    @cached_property
    def _all(self) -> list[str]:
        ids = list(range(min(len(self._tokenizer), self._size)))
        special = set(self._tokenizer.all_special_ids)
        found = self._tokenizer.convert_ids_to_tokens(ids)
        return ["" if n in special else str(piece or "") for n, piece in zip(ids, found, strict=True)]

    def text(self, tokens: Sequence[int]) -> str:
        """The raw text of tokens; special tokens have an empty text."""
        return "".join(self._all[token] for token in tokens)

    def starting_with(self, text: str) -> list[int]:
        """The tokens whose raw text begins with ``text``."""
        if text not in self._starting:
            self._starting[text] = [n for n, piece in enumerate(self._all) if piece.startswith(text)]
        return self._starting[text]

    def covers(self, rest: Sequence[int], nodes: Iterable[Prefix]) -> dict[Prefix, list[int]]:
        """The nodes at which the text of the tokens ``rest`` is not complete, and the tokens that complete or exceed it."""
        text = self.text(rest)
        reached = {node: self.text(node) for node in nodes}
        left = {node: text[len(so_far) :] for node, so_far in reached.items() if text.startswith(so_far)}
        return {node: tokens for node, rest in left.items() if rest and (tokens := self.starting_with(rest))}
