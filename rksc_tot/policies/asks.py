"""ASKS, attention-similarity KV sharing: Sekar 2026, https://arxiv.org/abs/2606.09937, section on ASKS.

Compares two branches by the hidden states of their last tokens, and decides when they may share KV.
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
    """When a new thought is merged into a sibling: σ ≥ τ.

    Parameters
    ----------
    tau
        τ, above 0, at most 1.
    alpha
        α of the layer weights w_l = exp(α l / L); 0 gives all layers the same weight. The paper uses 1.5.
    """

    kind = "ASKS"
    tau: float = Field(gt=0, le=1, allow_inf_nan=False)
    alpha: float = Field(1.5, allow_inf_nan=False)


def layer_weights(layers: int, alpha: float) -> Tensor:
    """w_l = exp(α l / L) for l = 1..L, shape ``[L]``, double precision."""
    import torch

    return torch.exp(alpha * torch.arange(1, layers + 1, dtype=torch.float64) / layers)


def sigma(states: Tensor, reference: Tensor, alpha: float = 1.5) -> float:
    """σ = Σ_l w_l cos(h_l, h_l^ref) / Σ_l w_l over the hidden states ``[L, H]`` of two last tokens, -1..1.

    NaN if a state is zero or holds a NaN; such branches do not share.
    """
    a, b = states.double().cpu(), reference.double().cpu()
    cosines = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))  # [L]
    weights = layer_weights(len(cosines), alpha)
    return float((weights * cosines).sum() / weights.sum())


class Signals(NamedTuple):
    """Measurements of a branch with reused KV, after its own tokens were computed.

    * ``sigma``: σ of its last token and the reference's, -1..1; None if the model has no hidden states.
    * ``lead``: logit of the likeliest next token minus that of the second.
    * ``entropy``: of the next-token distribution, nats.
    * ``harm``: what audits of this prompt variant found, see :func:`mean_harm`; None before the first audit.
    """

    sigma: float | None
    lead: float
    entropy: float
    harm: float | None


ReuseGate = Literal["sigma", "safety"]

GATES: Mapping[ReuseGate, Callable[[Signals], float | None]] = MappingProxyType(
    {
        "sigma": lambda s: s.sigma,
        "safety": lambda s: None if s.harm is None else s.lead / math.sqrt(2 * s.harm),
    }
)
"""How safe it is to keep reused KV; higher is safer, None if unknown.

* ``sigma``: the paper's.
* ``safety``: the lead over the noise of the logits, in standard deviations. Noise of variance v costs ½ v nats of KL where many
  tokens are likely, so ``harm`` gives v. Of six gates measured on two models, this one kept the most branches at 99 % agreement
  (``python -m benchmarks prompt_reuse``).
"""


def mean_harm(audits: Iterable[tuple[float, float]]) -> float:
    """The harm of a prompt variant: the geometric mean of KL / entropy over its audits.

    ``audits``: KL(exact || shared) and entropy of the next-token distribution, nats. Dividing by the entropy corrects for peaked
    distributions, where the same noise in the logits causes a smaller KL.
    """
    logs = [math.log(max(kl, 1e-12) / max(entropy, 0.05)) for kl, entropy in audits]
    return math.exp(math.fsum(logs) / len(logs))


class PromptReuse(Settings):
    """When a prompt variant may keep the KV that it reused from another variant.

    Parameters
    ----------
    threshold
        Least value of the gate; for ``sigma`` it is τ, above 0, at most 1. None keeps every branch, so that prompt variants can
        be audited before their ``harm`` is known. No value suits all
        models; ``python -m benchmarks prompt_reuse`` shows how to calibrate one.
    gate
        The value that is compared with ``threshold``. ``safety``: the lead of the likeliest token over the noise that ``harm``
        stands for; it keeps nothing without ``harm``. ``sigma``: the paper's σ, -1..1.
    alpha
        α of σ's layer weights. The paper uses 1.5.
    recompute
        Number of tokens at the beginning of the common run that are computed anyway; they attend most to the differing tokens.
        With 4 of them the KL was a third to a half lower for prompts with a common beginning, as in a chat template, and a
        seventh lower for others.
    least
        Shortest common run, in tokens, that is reused.
    audit
        Share of the kept branches, 0..1, that are also computed exactly; seeded by the caller's key.
    harm
        The harm of each prompt variant, measured with the same ``recompute``: maps names (see :func:`variant_name`) to values
        (see :func:`mean_harm`). The gate ``safety`` rejects variants that are missing here.
    """

    kind = "prompt reuse"
    threshold: float | None = Field(allow_inf_nan=False)
    gate: ReuseGate = "safety"
    alpha: float = Field(1.5, allow_inf_nan=False)
    recompute: int = Field(0, ge=0)
    least: int = Field(16, ge=1)
    audit: float = Field(0.05, ge=0, le=1, allow_inf_nan=False)
    harm: Mapping[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _tau_in_range(self) -> PromptReuse:
        if self.gate == "sigma" and self.threshold is not None and not 0 < self.threshold <= 1:
            raise ValueError(f"threshold of the gate 'sigma' must be above 0 and at most 1, not {self.threshold}")
        return self

    def objection(self, signals: Signals) -> str | None:
        """Why the gate rejects a branch, which is then computed exactly; None if the branch keeps the reused KV."""
        if any(value is not None and math.isnan(value) for value in signals):
            return "its hidden states or logits are not numbers (NaN)"
        if self.threshold is None:
            return None
        value = GATES[self.gate](signals)
        if value is None:
            missing = "hidden states" if self.gate == "sigma" else "an audit of this prompt variant"
            return f"the gate {self.gate!r} needs {missing}"
        if value < self.threshold:
            return f"{self.gate} is {value:.4g}, below {self.threshold:.4g}"
        return None


def variant_name(reference: Sequence[int], branch: Sequence[int], source: int, target: int, length: int) -> str:
    """Names a pair of prompt variants: a hash of the tokens around their common run of ``length`` tokens, not of the run."""
    around = (reference[:source], reference[source + length :], branch[:target], branch[target + length :])
    text = "|".join(" ".join(map(str, part)) for part in around)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
