"""CGEE, confidence-gated early exit: Sekar 2026, https://arxiv.org/abs/2606.09937, section on CGEE.

Rules for three decisions: a verifier's pass stops at a layer, the verifier is skipped, decoding of rival branches stops. No
threshold has a default: ``rksc-tot calibrate`` finds thresholds that hold for a model and a task, or says that none do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Protocol

from pydantic import Field

from rksc_tot.core.plugins.settings import Settings

Reading = tuple[int, Sequence[float]]
"""A layer, counted from 1, and the label probabilities that the logit lens reads there."""

Layer = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Nats = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ExitRule(Protocol):
    """Decides layer by layer. Frozen and stateless: one object serves all rows."""

    def checks(self, layer: int) -> bool:
        """Whether to read the logit lens after this layer, counted from 1."""
        ...

    def decided(self, seen: Sequence[Reading]) -> bool:
        """Whether the pass may stop after the last of the layers read so far, in order."""
        ...


class EntropyStable(Settings):
    """The paper's level 2: exit when the entropy is low and stable, H < θ and |ΔH| < ε, on two consecutive checked layers.

    H is taken over the labels, so it lies within 0..ln(number of labels).

    Parameters
    ----------
    theta
        θ, nats, above 0.
    epsilon
        ε, nats, above 0.
    layers
        Layers after which the lens is read, counted from 1; at least two.
    """

    kind = "exit rule"
    name: Literal["entropy"] = "entropy"
    theta: Nats
    epsilon: Nats
    layers: Annotated[tuple[Layer, ...], Field(min_length=2)]

    def checks(self, layer: int) -> bool:
        """Whether the layer is one of ``layers``."""
        return layer in self.layers

    def decided(self, seen: Sequence[Reading]) -> bool:
        """Whether the last two entropies are below θ and differ by less than ε."""
        if len(seen) < 2:
            return False
        before, now = (entropy(probabilities) for _, probabilities in seen[-2:])
        return max(before, now) < self.theta and abs(now - before) < self.epsilon


class Margins(Settings):
    """Exit after a layer if the likeliest label leads the second by at least the threshold of that layer.

    Parameters
    ----------
    thresholds
        For each checked layer, counted from 1, the least lead in label probability, 0..1.
    """

    kind = "exit rule"
    name: Literal["margins"] = "margins"
    thresholds: Annotated[Mapping[Layer, Share], Field(min_length=1)]

    def checks(self, layer: int) -> bool:
        """Whether the layer has a threshold."""
        return layer in self.thresholds

    def decided(self, seen: Sequence[Reading]) -> bool:
        """Whether the lead at the last read layer reaches its threshold."""
        layer, probabilities = seen[-1]
        return layer in self.thresholds and lead(probabilities) >= self.thresholds[layer]


class VerifySkip(Settings):
    """The paper's level 1: siblings are not verified if the confidence of one of them is decisive.

    The confidence of a branch is exp(mean log-probability of its tokens), 0..1, at temperature 1.

    Parameters
    ----------
    confidence
        τ, the least confidence of the top branch, 0..1.
    margin
        The least relative lead, (top - second) / top, 0..1.
    """

    kind = "skip rule"
    name: Literal["skip"] = "skip"
    confidence: Share
    margin: Share

    def decisive(self, confidences: Sequence[float]) -> bool:
        """Whether the most confident of two or more branches is decisive; a branch without rivals never is."""
        if len(confidences) < 2:
            return False
        top, second = sorted(confidences, reverse=True)[:2]
        return _leads(self, top, second)


class RivalStop(Settings):
    """The paper's level 0: running branches stop once an ended branch is decisive over all of them.

    The confidence is that of :class:`VerifySkip`, for a running branch over its tokens so far.

    Parameters
    ----------
    confidence
        τ, the least confidence of the best branch that has ended, 0..1.
    margin
        The least relative lead over the best running branch, 0..1.
    """

    kind = "rival rule"
    name: Literal["rivals"] = "rivals"
    confidence: Share
    margin: Share

    def decisive(self, ended: Sequence[float], running: Sequence[float]) -> bool:
        """Whether the running branches may stop."""
        return bool(ended and running) and _leads(self, max(ended), max(running))


def exit_layer(rule: ExitRule, trace: Sequence[Sequence[float]]) -> int | None:
    """The layer after which a pass would have stopped, None if it would have run all layers.

    Parameters
    ----------
    rule : ExitRule
    trace : sequence of sequence of float
        ``[layers, labels]``: label probabilities after every layer, the last one included.
    """
    seen: list[Reading] = []
    for layer, probabilities in enumerate(trace[:-1], start=1):
        if rule.checks(layer):
            seen.append((layer, probabilities))
            if rule.decided(seen):
                return layer
    return None


def survivors(rule: RivalStop, logprobs: Sequence[Sequence[float]]) -> list[int] | None:
    """The branches that had ended when the others could stop, None if never. All branches grow by one token a step."""
    for step in range(1, max(map(len, logprobs), default=0)):
        ended = [n for n, branch in enumerate(logprobs) if len(branch) <= step]
        running = [confidence(branch[:step]) for branch in logprobs if len(branch) > step]
        if rule.decisive([confidence(logprobs[n]) for n in ended], running):
            return ended
    return None


def likeliest(probabilities: Sequence[float]) -> int:
    """Index of the likeliest label, the first one among equals."""
    return max(range(len(probabilities)), key=probabilities.__getitem__)


def lead(probabilities: Sequence[float]) -> float:
    """The largest probability minus the second, 0..1."""
    top, second = sorted(probabilities, reverse=True)[:2]
    return top - second


def entropy(probabilities: Sequence[float]) -> float:
    """Entropy of a distribution, nats."""
    return -math.fsum(p * math.log(p) for p in probabilities if p > 0)


def confidence(logprobs: Sequence[float]) -> float:
    """exp(mean of ``logprobs``), 0..1; 1 for a branch without tokens. ``logprobs``: nats, at temperature 1."""
    return math.exp(math.fsum(logprobs) / len(logprobs)) if logprobs else 1.0


def _leads(rule: VerifySkip | RivalStop, top: float, second: float) -> bool:
    return top > 0 and top >= rule.confidence and (top - second) / top >= rule.margin
