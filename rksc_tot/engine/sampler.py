"""Drawing tokens: one call for all rows of a pass, each branch with a random number of its own.

A token is drawn by inverting the cumulative distribution *in the order of token ids*, in double precision: a difference in
the last bits of a logit moves no boundary by more than itself, whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rksc_tot.engine.base import Sampling


class Stream:
    """The uniform numbers of one branch, by position: the i-th token is drawn with the i-th number."""

    __slots__ = ("_drawn", "_key", "_source")

    def __init__(self, key: int) -> None:
        self._key = key
        self._source: np.random.Generator | None = None  # made when first drawn from
        self._drawn = np.empty(0)

    def __getitem__(self, position: int) -> float:
        if self._source is None:
            self._source = np.random.Generator(np.random.Philox(key=self._key))
        while position >= len(self._drawn):
            self._drawn = np.concatenate([self._drawn, self._source.random(max(16, len(self._drawn)))])
        return float(self._drawn[position])


class Draw(NamedTuple):
    """What one branch wants: a token from row ``row`` with the number ``uniform`` in [0, 1)."""

    row: int
    uniform: float
    sampling: Sampling


def sample(logits: Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[float]]:
    """Token and log-probability (of the unfiltered model, nats) of each draw from ``logits [rows, V]``."""
    logits = logits.float()
    log_z = torch.logsumexp(logits, -1)  # [rows]
    tokens = [0] * len(draws)
    by_setting: dict[Sampling, list[int]] = {}
    for i, draw in enumerate(draws):
        by_setting.setdefault(draw.sampling, []).append(i)
    for sampling, members in by_setting.items():
        rows = sorted({draws[i].row for i in members})
        place = {row: n for n, row in enumerate(rows)}
        chosen = logits[rows]
        if sampling.temperature == 0:
            best = chosen.argmax(-1).tolist()
            for i in members:
                tokens[i] = best[place[draws[i].row]]
            continue
        cumulative = filtered(chosen, sampling).double().cumsum(-1)  # [rows, V]
        by_row: list[list[int]] = [[] for _ in rows]
        for i in members:
            by_row[place[draws[i].row]].append(i)
        uniform = torch.zeros(len(rows), max(map(len, by_row)), dtype=torch.float64)
        for n, wanted in enumerate(by_row):
            uniform[n, : len(wanted)] = torch.tensor([draws[i].uniform for i in wanted], dtype=torch.float64)
        uniform = uniform.to(logits.device) * cumulative[:, -1:]
        last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())  # the last token with any mass
        picked = torch.minimum(torch.searchsorted(cumulative, uniform, right=True), last).tolist()
        for n, wanted in enumerate(by_row):
            for m, i in enumerate(wanted):
                tokens[i] = picked[n][m]
    row_index = torch.tensor([draw.row for draw in draws], device=logits.device)
    token_index = torch.tensor(tokens, device=logits.device)
    logprobs = (logits[row_index, token_index] - log_z[row_index]).tolist()
    return tokens, logprobs


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities ``[rows, V]`` after temperature, top-k, top-p and min-p, not normalised."""
    scaled = (logits - logits.amax(-1, keepdim=True)) / sampling.temperature  # largest is 0: nothing overflows
    if sampling.top_k is not None and sampling.top_k < scaled.shape[-1]:
        floor = scaled.topk(sampling.top_k, -1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < floor, float("-inf"))
    if sampling.top_p < 1:
        ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
        mass = ordered.softmax(-1).cumsum(-1)
        beyond = mass - ordered.softmax(-1) >= sampling.top_p  # the token that crosses the line stays
        scaled = scaled.masked_fill(beyond.scatter(-1, order, beyond), float("-inf"))
    probabilities = scaled.softmax(-1)
    if sampling.min_p > 0:
        floor = sampling.min_p * probabilities.amax(-1, keepdim=True)
        probabilities = probabilities.masked_fill(probabilities < floor, 0.0)
    return probabilities
