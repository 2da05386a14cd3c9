"""ArborKV: Chen et al. 2026, https://arxiv.org/abs/2605.22106. Thoughts off the current path keep tokens by their value.

Implemented from the abstract and quotations: the formulas of value and weight, the protected blocks, and eviction of tokens
without merging. All default numbers are ours.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from rksc_tot.policies.compression.arborkv_fit import ArborFit, Finite, Theta
from rksc_tot.policies.compression.base import Kept, ThoughtBlock, TreePolicy, View
from rksc_tot.policies.compression.selection import highest

FARTHEST = 1e4  # nats; logarithms are clipped to this range so that sums stay accurate


class ArborKV(TreePolicy):
    """Blocks keep tokens in proportion to value · exp(-λ · tree distance), with the value σ(θᵀφ).

    φ: the search value of the block's thought, the entropy of the next-token distribution after it, and the attention of later
    rows to it. An unknown feature counts as 0. The logistic σ keeps the value in 0..1; the paper clips it. Blocks on paths that
    are being continued keep all tokens, other blocks at least their tail.

    Parameters
    ----------
    theta
        θ, the weights of search value, boundary entropy and attention. ``rksc-tot fit arborkv`` fits it to a model and a task by
        leaving blocks out. The default gives more tokens to blocks with a higher value or more attention. It ignores
        entropy, as the sign of its effect is unknown.
    offset
        Added to θᵀφ. A fit needs it; the quotations of the paper do not mention one.
    fit
        The source of θ and offset: an :class:`~rksc_tot.policies.compression.arborkv_fit.ArborFit`, or its file. A search with
        another model or task raises ConfigError.
    decay
        λ of the tree distance, 0..10000. At 0 the distance has no effect.
    sinks
        Number of first tokens of a path that always stay. They usually belong to the prompt, which is protected anyway.
    tail
        Number of last tokens of each block that always stay.
    within
        Which other tokens of a block stay: those with the most ``attention``, or ``random`` ones. Without measured attention they
        are random. The quotations of the paper do not say how it ranks tokens.
    """

    name: ClassVar[str] = "arborkv"
    theta: Theta = Field((1.0, 0.0, 1.0), description="weights of search value, boundary entropy and attention")
    offset: Finite = Field(0.0, description="added to the weighted sum")
    fit: ArborFit | None = Field(None, description="output of `rksc-tot fit arborkv`, with theta and offset")
    decay: float = Field(0.5, ge=0, le=FARTHEST, description="λ of the tree distance")
    sinks: int = Field(4, ge=0, description="first tokens of a path that stay")
    tail: int = Field(8, ge=0, description="last tokens of a block that stay")
    within: Literal["attention", "random"] = Field("attention", description="which other tokens of a block stay")

    def check_task(self, name: str) -> None:
        if self.fit is not None:
            self.fit.check_task(name)

    def check_model(self, name: str, layers: int, weights: Callable[[], str]) -> None:
        if self.fit is not None:
            self.fit.check_model(name, layers, weights())

    @classmethod
    def from_fit(cls, fit: ArborFit, **settings: Any) -> ArborKV:
        """A policy with θ and offset of a fit, for searches with the same model and task."""
        return cls(fit=fit, **settings)

    @model_validator(mode="before")
    @classmethod
    def _fitted(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Load the fit if it is a file, and take θ and offset from it."""
        given = values.get("fit")
        if given is None:
            return values
        fit = ArborFit.load(str(given)) if isinstance(given, str | Path) else ArborFit.model_validate(given)
        for name, fitted in (("theta", fit.theta), ("offset", fit.offset)):
            own = values.get(name, fitted)
            if (tuple(own) if isinstance(own, list) else own) != fitted:
                raise ValueError(f"{name} differs from that of the fit; leave out one of them")
        return {**values, "fit": fit, "theta": fit.theta, "offset": fit.offset}

    @property
    def heeds_attention(self) -> bool:
        return self.within == "attention" or self.theta[2] != 0

    def value(self, block: ThoughtBlock) -> float:
        """σ(θᵀφ + offset), 0..1."""
        return math.exp(_log_sigmoid(self._logit(block)))

    def weight(self, block: ThoughtBlock) -> float:
        """The weight of a block in the budget, 0..1: value · exp(-λ · distance)."""
        return math.exp(self._log_weight(block))

    def allot(self, blocks: Sequence[ThoughtBlock], budget: int) -> list[int]:
        """Number of tokens that each block keeps.

        Protected blocks keep all tokens; other blocks keep their sinks and their tail. The rest of the budget is given token by
        token to the block with the smallest number of further tokens in proportion to its weight. A block therefore never
        gains from a smaller budget and never loses from a larger one.

        Returns
        -------
        list of int
            The sum is min(budget, all tokens), or the number of tokens that must stay if that is larger.
        """
        floors = [self._floor(block) for block in blocks]
        rooms = [block.tokens - floor for block, floor in zip(blocks, floors, strict=True)]
        more = shared_out(min(budget - sum(floors), sum(rooms)), rooms, [self._log_weight(block) for block in blocks])
        return [floor + extra for floor, extra in zip(floors, more, strict=True)]

    def select(self, view: View, budget: int, rng: np.random.Generator) -> Kept:
        """Keep the sinks and the prompt first, then the tail, then the tokens with the highest scores."""
        if self.within == "attention" and view.attention is not None:
            scores = view.attention.mean((0, 1), dtype=np.float64)  # [n]
        else:
            scores = rng.random(len(view))
        scores[max(0, len(view) - self.tail) :] = np.inf
        return highest(scores, budget, max(view.prompt, int(np.count_nonzero(view.positions < self.sinks))))

    def _floor(self, block: ThoughtBlock) -> int:
        if block.protected:
            return block.tokens
        return min(block.tokens, max(0, self.sinks - block.start) + max(0, self.tail - block.below))

    def _logit(self, block: ThoughtBlock) -> float:
        phi = (block.value, block.entropy, block.attention)
        terms = (weight * x for weight, x in zip(self.theta, phi, strict=True) if weight and not math.isnan(x))
        return max(-FARTHEST, min(FARTHEST, sum(terms, self.offset)))

    def _log_weight(self, block: ThoughtBlock) -> float:
        return _log_sigmoid(self._logit(block)) - self.decay * block.distance


def shared_out(amount: int, rooms: Sequence[int], log_weights: Sequence[float]) -> list[int]:
    """Divide whole tokens by weight with an upper limit for each taker: the method of Jefferson and D'Hondt, in O(n log n).

    Parameters
    ----------
    amount : int
        Number of tokens, at most the sum of ``rooms``; negative counts as 0.
    rooms : sequence of int
        ``[n]``: upper limit of each taker.
    log_weights : sequence of float
        ``[n]``, finite: logarithms of the weights.

    Returns
    -------
    list of int
        ``[n]``; the sum is ``amount``.
    """
    if amount <= 0:
        return [0] * len(rooms)
    heaviest = max(log_weights)
    weights = [max(weight - heaviest, -FARTHEST) for weight in log_weights]
    level = _level(amount, [(room, weight) for room, weight in zip(rooms, weights, strict=True) if room])
    # Each taker gets at least its share rounded down, so only the sum of the fractions is given one by one.
    shares = [
        int((1 - 1e-9) * math.exp(min(weight + level, math.log(room)))) if room else 0
        for room, weight in zip(rooms, weights, strict=True)
    ]
    queue = [(math.log1p(share) - weights[at], at) for at, share in enumerate(shares) if share < rooms[at]]
    heapq.heapify(queue)
    for _ in range(amount - sum(shares)):
        at = queue[0][1]
        shares[at] += 1
        if shares[at] < rooms[at]:
            heapq.heapreplace(queue, (math.log1p(shares[at]) - weights[at], at))
        else:
            heapq.heappop(queue)
    return shares


def _level(amount: int, takers: Sequence[tuple[int, float]]) -> float:
    """Logarithm of the t > 0 for which the min(room, weight · t) of all takers ``(room, log weight)`` add up to ``amount``."""
    ordered = sorted((math.log(room) - weight, room, weight) for room, weight in takers)  # by when each taker is full
    together: list[float] = np.logaddexp.accumulate([weight for _, _, weight in reversed(ordered)]).tolist()[::-1]
    level = -math.inf
    for (full, room, _), weight in zip(ordered, together, strict=True):
        if math.log(amount) - weight < full:
            return max(level, math.log(amount) - weight)
        level, amount = full, amount - room
        if amount <= 0:
            break
    return level


def _log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x)) if x >= 0 else x - math.log1p(math.exp(x))
