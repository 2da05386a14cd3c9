"""ArborKV: Chen et al. 2026, https://arxiv.org/abs/2605.22106. Thoughts off the path being continued keep what they are worth.

Of the paper the abstract and what others quote was at hand: the form of value and weight, what is protected, and that tokens
are only left out, never merged. Its numbers were not; every default here is ours.
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

FARTHEST = 1e4  # nats: what is known no better than that is treated alike, so that sums stay exact enough


class ArborKV(TreePolicy):
    """Blocks keep tokens in proportion to value · exp(-λ · tree distance), the value being σ(θᵀφ).

    φ: the search value of the block's thought, the entropy of the token after it, the attention that later rows paid to it; one
    that is not known counts nothing. σ lies within 0..1, where the paper clips it. Blocks that what is being continued stands
    on are kept whole, of the others at least the tail.

    Parameters
    ----------
    theta
        θ, of search value, boundary entropy and attention. ``rksc-tot fit arborkv`` finds it for a model and a task by leaving
        blocks out. Until then it is no more than a direction: what is worth more or looked at more is kept more; which way
        entropy counts nobody has said, so it does not.
    offset
        Added to θᵀφ. The paper is not known to have one; a fit needs it.
    fit
        What θ and offset are taken from: an :class:`~rksc_tot.policies.compression.arborkv_fit.ArborFit`, or its
        file. A search on another
        model or task than it was made for is refused.
    decay
        λ of the tree distance, 0..10000; at 0 distance does not matter.
    sinks
        So many of the first tokens of a path stay, wherever they are. They are mostly the prompt's, which is protected.
    tail
        So many of the last tokens of each block stay.
    within
        Which tokens of a block stay beside these: those with most ``attention``, or ``random`` ones. What is not measured is
        random. How the paper scores them is not known.
    """

    name: ClassVar[str] = "arborkv"
    theta: Theta = Field((1.0, 0.0, 1.0), description="of search value, boundary entropy and attention")
    offset: Finite = Field(0.0, description="added to what theta weighs")
    fit: ArborFit | None = Field(None, description="of `rksc-tot fit arborkv`; it has theta and offset")
    decay: float = Field(0.5, ge=0, le=FARTHEST, description="λ of the tree distance")
    sinks: int = Field(4, ge=0, description="first tokens of a path that stay")
    tail: int = Field(8, ge=0, description="last tokens of a block that stay")
    within: Literal["attention", "random"] = Field("attention", description="which tokens of a block stay beside these")

    def check_task(self, name: str) -> None:
        if self.fit is not None:
            self.fit.check_task(name)

    def check_model(self, name: str, layers: int, weights: Callable[[], str]) -> None:
        if self.fit is not None:
            self.fit.check_model(name, layers, weights())

    @classmethod
    def from_fit(cls, fit: ArborFit, **settings: Any) -> ArborKV:
        """With the θ of a fit, for searches on what that was made for."""
        return cls(fit=fit, **settings)

    @model_validator(mode="before")
    @classmethod
    def _fitted(cls, values: dict[str, Any]) -> dict[str, Any]:
        """θ and offset are those of the fit, which is read where it is a file."""
        given = values.get("fit")
        if given is None:
            return values
        fit = ArborFit.load(str(given)) if isinstance(given, str | Path) else ArborFit.model_validate(given)
        for name, fitted in (("theta", fit.theta), ("offset", fit.offset)):
            own = values.get(name, fitted)
            if (tuple(own) if isinstance(own, list) else own) != fitted:
                raise ValueError(f"{name} is given, and so is a fit, which has another one; leave one of them out")
        return {**values, "fit": fit, "theta": fit.theta, "offset": fit.offset}

    @property
    def heeds_attention(self) -> bool:
        return self.within == "attention" or self.theta[2] != 0

    def value(self, block: ThoughtBlock) -> float:
        """σ(θᵀφ + offset), 0..1."""
        return math.exp(_log_sigmoid(self._logit(block)))

    def weight(self, block: ThoughtBlock) -> float:
        """By what a block's share of the budget is measured, 0..1: value · exp(-λ · distance)."""
        return math.exp(self._log_weight(block))

    def allot(self, blocks: Sequence[ThoughtBlock], budget: int) -> list[int]:
        """How many tokens each block keeps.

        Protected blocks keep all, the others the sinks and the tail they hold. What is left of the budget goes token by token
        to the block that has least beyond that in proportion to its weight, and has more to keep; the first of equals. A block
        therefore never gains by a smaller budget, nor loses by a larger one.

        Returns
        -------
        list of int
            min(budget, all tokens) in sum, or what is protected if that is more.
        """
        floors = [self._floor(block) for block in blocks]
        rooms = [block.tokens - floor for block, floor in zip(blocks, floors, strict=True)]
        more = shared_out(min(budget - sum(floors), sum(rooms)), rooms, [self._log_weight(block) for block in blocks])
        return [floor + extra for floor, extra in zip(floors, more, strict=True)]

    def select(self, view: View, budget: int, rng: np.random.Generator) -> Kept:
        """Sinks, and a prompt that is in the block, come first, then the tail, then the rest."""
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
    """Share out whole things by weight, none above its room: the rule of Jefferson and D'Hondt, in O(n log n).

    Parameters
    ----------
    amount : int
        How many, at most the sum of ``rooms``; below 0 is 0.
    rooms : sequence of int
        ``[n]``: how many each takes at most.
    log_weights : sequence of float
        ``[n]``, finite: logarithms, so that weights of very different size stay comparable.

    Returns
    -------
    list of int
        ``[n]``, ``amount`` in sum.
    """
    if amount <= 0:
        return [0] * len(rooms)
    heaviest = max(log_weights)
    weights = [max(weight - heaviest, -FARTHEST) for weight in log_weights]
    level = _level(amount, [(room, weight) for room, weight in zip(rooms, weights, strict=True) if room])
    # Nobody gets less than his whole share, so only what the fractions add up to is given one by one.
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
    """Logarithm of the t such that min(room, weight · t) over all takers ``(room, log weight)`` add up to ``amount``, above 0."""
    ordered = sorted((math.log(room) - weight, room, weight) for room, weight in takers)  # who is full first
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
