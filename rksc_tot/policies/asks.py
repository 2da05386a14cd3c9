"""ASKS, attention-similarity KV sharing: Sekar 2026, https://arxiv.org/abs/2606.09937, section on ASKS.

How alike two branches are, by the hidden states of their last tokens, and when that is alike enough to share.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from rksc_tot.core.plugins.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor


class ASKS(Settings):
    """When a new thought becomes one with a sibling: σ ≥ τ.

    Parameters
    ----------
    tau
        τ, above 0, at most 1.
    alpha
        α of the layer weights w_l = exp(α l / L); 0 weighs all layers alike. The paper has 1.5.
    """

    kind = "ASKS"
    tau: float = Field(gt=0, le=1, allow_inf_nan=False)
    alpha: float = Field(1.5, allow_inf_nan=False)


def layer_weights(layers: int, alpha: float) -> Tensor:
    """w_l = exp(α l / L) for l = 1..L, shape ``[L]``, double precision."""
    import torch

    return torch.exp(alpha * torch.arange(1, layers + 1, dtype=torch.float64) / layers)


def sigma(states: Tensor, reference: Tensor, alpha: float = 1.5) -> float:
    """σ = Σ_l w_l cos(h_l, h_l^ref) / Σ_l w_l over hidden states ``[L, H]`` of two last tokens, -1..1.

    NaN where a state is not a number or has no length: that is no reason to share.
    """
    a, b = states.double().cpu(), reference.double().cpu()
    cosines = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))  # [L]
    weights = layer_weights(len(cosines), alpha)
    return float((weights * cosines).sum() / weights.sum())


class Signals(NamedTuple):
    """What is known of a branch that took KV over, once its own tokens are computed.

    ``sigma``: σ of its last token and the reference's, None where hidden states are not to be had. ``lead``: logit of the
    likeliest next token minus that of the second. ``margin``: the same of their probabilities. ``entropy``: of the next
    token, nats. ``harm``: what audits of this wording found, see :func:`mean_harm`; None before the first.
    """

    sigma: float | None
    lead: float
    margin: float
    entropy: float
    harm: float | None


ReuseGate = Literal["sigma", "lead", "margin", "entropy", "harm", "safety"]

GATES: Mapping[ReuseGate, Callable[[Signals], float | None]] = MappingProxyType(
    {
        "sigma": lambda s: s.sigma,
        "lead": lambda s: s.lead,
        "margin": lambda s: s.margin,
        "entropy": lambda s: -s.entropy,
        "harm": lambda s: None if s.harm is None else -s.harm * s.entropy,
        "safety": lambda s: None if s.harm is None else s.lead / math.sqrt(2 * s.harm),
    }
)
"""How safe it looks to keep what was taken over, higher is safer; None where it cannot be told. ``sigma`` is the paper's.
``harm``: the KL to expect. ``safety``: logits that are off by noise of variance v cost ½ v nats of KL where many tokens are
likely, so this is the lead of the likeliest token in standard deviations of the noise that audits found under its wording.
"""


def mean_harm(audits: Iterable[tuple[float, float]]) -> float:
    """The harm of a wording from audits, each a KL(exact || shared) and the entropy of the next token, nats.

    The geometric mean of KL over entropy: a peaked distribution shows less of the same noise in the logits, and so hides it.
    """
    logs = [math.log(max(kl, 1e-12) / max(entropy, 0.05)) for kl, entropy in audits]
    return math.exp(math.fsum(logs) / len(logs))


class PromptReuse(Settings):
    """When a prompt may keep the KV it took over from another wording of the same.

    Parameters
    ----------
    threshold
        Least value of the gate. Under ``sigma`` it is τ, above 0, at most 1. No value is good for all models: see
        ``python -m benchmarks prompt_reuse`` for how one is calibrated.
    gate
        What is asked to be that high. ``lead``: the logit of the likeliest next token minus that of the second. ``margin``: the
        same of their probabilities, 0..1. ``entropy``: minus that of the next token, nats. ``sigma``: the paper's σ, -1..1.
        ``harm``: minus the KL to be expected by ``harm``, nats. ``safety``: the lead over the noise that ``harm`` stands for. The
        last two keep nothing without ``harm``.
    alpha
        α of σ's layer weights. The paper has 1.5.
    recompute
        How many tokens at the beginning of the common run are computed all the same. It is they that see the other wording
        most: with 4 of them the KL was a third to a half lower where the prompts open alike, as in a chat template, and a
        seventh where they do not even share their first token.
    least
        Shortest run, in tokens, that is worth it.
    audit
        Share of the kept branches, 0..1, that are also computed exactly; seeded by the caller's key.
    harm
        By wording (see :func:`wording`) what audits found (see :func:`mean_harm`), with the same ``recompute``. A wording
        that is not there is sent back by the gates that need it.
    """

    kind = "ASKS phrasing"
    threshold: float = Field(allow_inf_nan=False)
    gate: ReuseGate = "safety"
    alpha: float = Field(1.5, allow_inf_nan=False)
    recompute: int = Field(0, ge=0)
    least: int = Field(16, ge=1)
    audit: float = Field(0.05, ge=0, le=1, allow_inf_nan=False)
    harm: Mapping[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _tau_in_range(self) -> PromptReuse:
        if self.gate == "sigma" and not 0 < self.threshold <= 1:
            raise ValueError(f"threshold: τ of the gate 'sigma' lies above 0 and is at most 1, not {self.threshold}")
        return self

    def objection(self, signals: Signals) -> str | None:
        """Why a branch is computed anew, as the end of a sentence; None if it keeps what it took over."""
        if any(value is not None and math.isnan(value) for value in signals):
            return "its hidden states or logits are not numbers (NaN)"
        value = GATES[self.gate](signals)
        if value is None:
            missing = "hidden states" if self.gate == "sigma" else "an audit of this wording"
            return f"the gate {self.gate!r} needs {missing}"
        if value < self.threshold:
            return f"{self.gate} is {value:.4g}, below {self.threshold:.4g}"
        return None


def wording(reference: Sequence[int], branch: Sequence[int], source: int, target: int, length: int) -> str:
    """A name for what stands around a common run of ``length`` tokens in two prompts, the same for every such run."""
    around = (reference[:source], reference[source + length :], branch[:target], branch[target + length :])
    text = "|".join(" ".join(map(str, part)) for part in around)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
