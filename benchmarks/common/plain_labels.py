"""Label probabilities from plain forward passes: each whole label after the question, one at a time, without a cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerBase


class PlainLabels(NamedTuple):
    """``shares``: probability of each label; they sum to 1. ``outside``: probability of other texts after the question."""

    shares: list[float]
    outside: float


LogProbs = Callable[[Sequence[int]], torch.Tensor]
"""Returns log-probabilities ``[T, V]`` of the token after each token of a text, in double precision, from one plain pass."""


def plain_labels(
    logprobs: LogProbs,
    tokenizer: PreTrainedTokenizerBase,
    path: Sequence[int],
    question: str,
    labels: Sequence[str],
    encode: Callable[[str], list[int]],
) -> PlainLabels:
    """The probabilities of labels after ``path`` and a question.

    If the question ends in white space, a spelling is the label itself. If it ends in a letter or digit, the spelling has a
    space before the label. Otherwise both count. Question and label are tokenised together with ``encode``. If that changes
    tokens of the question, probabilities are conditional on the question's text.
    """
    after = question[-1]
    spaces = [""] if after.isspace() else [" "] if after.isalnum() else ["", " "]
    wholes = {label: {tuple(encode(question + space + label)) for space in spaces} for label in labels}
    asked = tuple(encode(question))
    kept = min(_shared(asked, whole) for found in wholes.values() for whole in found)
    base = [*path, *asked[:kept]]

    def probability(whole: tuple[int, ...]) -> float:
        rest = whole[kept:]
        table = logprobs([*base, *rest])[len(base) - 1 : -1]
        return math.exp(sum(float(table[n, token]) for n, token in enumerate(rest)))

    of = {whole: label for label, found in wholes.items() for whole in found}
    mass = dict.fromkeys(labels, 0.0)
    for whole, label in of.items():
        found = probability(whole)
        mass[label] += found
        shorter = [other for other in of if len(other) < len(whole) and whole[: len(other)] == other]
        if shorter and (nearest := of[max(shorter, key=len)]) != label:
            mass[nearest] -= found
    given = 1.0
    if merged := tokenizer.decode(list(asked[kept:])):
        if len(asked) - kept > 1:
            raise ValueError(f"{question!r} merges with its labels by more than one token")
        texts = (tokenizer.decode([token]) for token in range(len(tokenizer)))
        begin = [token for token, text in enumerate(texts) if text.startswith(merged)]
        given = float(logprobs(base)[-1, begin].exp().sum())
    inside = sum(mass.values())
    return PlainLabels([p / inside for p in mass.values()], 1 - inside / given)


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return count
