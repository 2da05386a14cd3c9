"""Samples tokens for all rows of a pass in one call, with one private random number a branch.

A token is drawn by inverting the cumulative distribution *in the order of token ids*. A rounding difference in a logit then
moves every boundary by at most as much. Weights are summed by block first. Only the block that contains the random number is
summed token by token, in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rksc_tot.engine.base import Sampling

BLOCK = 256  # tokens
PLAIN = Sampling()


class Draws(NamedTuple):
    """Requested draws: one token for each entry of ``rows``, with a random number in [0, 1) from ``uniforms``.

    ``masks``: the tokens that each entry may draw ``[V]``; empty: all tokens.
    """

    rows: Sequence[int]
    uniforms: NDArray[np.float64]
    sampling: Sampling
    masks: Sequence[NDArray[np.bool_]] = ()


NO_DRAWS = Draws((), np.empty(0), PLAIN)


class Logits:
    """Next-token logits ``[n, V]``, with cached values derived from them."""

    def __init__(self, logits: Tensor) -> None:
        self.table = logits.float()

    @cached_property
    def weights(self) -> Weights:
        """Probabilities at temperature 1, not normalised."""
        return Weights(self.table, self._top)

    @cached_property
    def log_z(self) -> Tensor:
        """``[n]`` log of the normaliser (nats), in double precision; NaN for rows whose logits are not finite."""
        return self._top.double() + self.weights.sums.sum(-1).log()

    def log_mass(self, row: int, mask: NDArray[np.bool_]) -> float:
        """Log of the probability (nats) of all tokens of a mask in one row, in double precision."""
        allowed = torch.from_numpy(mask).to(self.table.device)
        return float(self.table[row, allowed].double().logsumexp(-1) - self.log_z[row])

    @cached_property
    def _top(self) -> Tensor:
        return self.table.amax(-1)

    def logprobs(self, row: int, tokens: Sequence[int] | slice = slice(None)) -> Tensor:
        """Log-probabilities (nats) of tokens in one row, in double precision."""
        return self.table[row, tokens].double() - self.log_z[row]


class Weights:
    """Weights of tokens ``[n, blocks, BLOCK]`` in the order of their ids, and the sums of the blocks ``[n, blocks]``."""

    def __init__(self, logits: Tensor, top: Tensor) -> None:
        rows, vocabulary = logits.shape
        blocks = -(-vocabulary // BLOCK)
        if vocabulary == blocks * BLOCK:
            weights = logits - top[:, None]
        else:
            weights = logits.new_full((rows, blocks * BLOCK), float("-inf"))
            torch.sub(logits, top[:, None], out=weights[:, :vocabulary])
        self.each = weights.exp_().view(rows, blocks, BLOCK)
        self.sums = self.each.sum(-1).double()

    def pick(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        """Tokens ``[d]`` of ``rows [d]`` at which the cumulative weight exceeds the share ``uniforms [d]`` of the total."""
        sums = self.sums[rows].cumsum(-1)  # [d, blocks]
        wanted = uniforms[:, None] * sums[:, -1:]
        block = _passes(sums, wanted)  # [d, 1]
        before = sums.gather(1, block) - self.sums[rows].gather(1, block)
        each = self.each[rows, block[:, 0]].double().cumsum(-1)  # [d, BLOCK]
        return (block * BLOCK + _passes(each, wanted - before))[:, 0]


def _passes(cumulative: Tensor, wanted: Tensor) -> Tensor:
    """First index at which ``cumulative [d, m]`` exceeds ``wanted [d, 1]``, at most the index at which it reaches its total."""
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(cumulative, wanted, right=True), last)


def sample(logits: Logits, draws: Sequence[Draws]) -> tuple[list[list[int]], list[list[float]]]:
    """Sample a token for each of ``draws``; returns tokens and their log-probabilities (nats, without filters)."""
    by_setting: dict[tuple[Sampling, bool], list[Draws]] = {}
    for wanted in draws:
        if wanted.rows:
            by_setting.setdefault((wanted.sampling, len(wanted.masks) > 0), []).append(wanted)
    found: dict[int, list[int]] = {}
    likely: dict[int, list[float]] = {}
    device = logits.table.device
    for (sampling, constrained), members in by_setting.items():
        rows = torch.tensor([row for wanted in members for row in wanted.rows], dtype=torch.long, device=device)
        uniforms = torch.from_numpy(np.concatenate([wanted.uniforms for wanted in members])).to(device)
        if constrained:
            tokens = _draw(*masked(logits.table, members), uniforms, sampling)
        elif sampling.temperature == 0:
            tokens = logits.table.argmax(-1)[rows]
        elif sampling == PLAIN:
            tokens = logits.weights.pick(rows, uniforms)
        else:
            used, places = torch.unique(rows, return_inverse=True)
            tokens = _draw(logits.table[used], places, uniforms, sampling)
        values = (logits.table[rows, tokens].double() - logits.log_z[rows]).tolist()
        each, at = tokens.tolist(), 0
        for wanted in members:
            count = len(wanted.rows)
            found[id(wanted)], likely[id(wanted)] = each[at : at + count], values[at : at + count]
            at += count
    return [found.get(id(wanted), []) for wanted in draws], [likely.get(id(wanted), []) for wanted in draws]


def masked(table: Tensor, draws: Sequence[Draws]) -> tuple[Tensor, Tensor]:
    """Logits ``[m, V]`` that are -inf for tokens that a mask forbids, and the row ``[d]`` of each draw in them."""
    index: dict[tuple[int, int], int] = {}
    rows: list[int] = []
    masks: list[NDArray[np.bool_]] = []
    places: list[int] = []
    for row, mask in ((row, mask) for wanted in draws for row, mask in zip(wanted.rows, wanted.masks, strict=True)):
        if (row, id(mask)) not in index:
            index[row, id(mask)] = len(rows)
            rows.append(row)
            masks.append(mask)
        places.append(index[row, id(mask)])
    allowed = torch.from_numpy(np.stack(masks)).to(table.device)
    return table[rows].masked_fill(~allowed, float("-inf")), torch.tensor(places, device=table.device)


def _draw(logits: Tensor, rows: Tensor, uniforms: Tensor, sampling: Sampling) -> Tensor:
    """Tokens ``[d]`` drawn from ``rows [d]`` of logits ``[m, V]``."""
    if sampling.temperature == 0:
        return logits.argmax(-1)[rows]
    scaled = filtered(logits, sampling)
    return Weights(scaled, scaled.amax(-1)).pick(rows, uniforms)


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits ``[rows, V]`` after temperature, top-k, top-p and min-p; -inf for tokens that were filtered out."""
    scaled = (logits - logits.amax(-1, keepdim=True)) / sampling.temperature  # largest is 0: nothing overflows
    if sampling.top_k is not None and sampling.top_k < scaled.shape[-1]:
        floor = scaled.topk(sampling.top_k, -1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < floor, float("-inf"))
    if sampling.top_p < 1:
        ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
        probabilities = ordered.softmax(-1)
        beyond = probabilities.cumsum(-1) - probabilities >= sampling.top_p  # the token that crosses the line stays
        scaled = scaled.masked_fill(beyond.scatter(-1, order, beyond), float("-inf"))
    if sampling.min_p > 0:
        probabilities = scaled.softmax(-1)
        floor = sampling.min_p * probabilities.amax(-1, keepdim=True)
        scaled = scaled.masked_fill(probabilities < floor, float("-inf"))
    return scaled
