"""The fit of ArborKV's θ: logistic regression on the effects of leaving blocks out, and the record of its result."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.record_file import ChecksummedRecord

Numbers = NDArray[np.float64]
Count = Annotated[int, Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Theta = tuple[Finite, Finite, Finite]
FEATURES = ("search value", "boundary entropy", "attention")


class ArborFit(ChecksummedRecord):
    """θ and offset for one model on one task, and the data of the fit.

    Parameters
    ----------
    weights
        Hash over the model's parameters, see :func:`rksc_tot.search.approximate.fingerprint.weights_of`.
    problems, samples
        Number of problems searched, and number of blocks that were left out, one at a time.
    changed
        Number of those blocks whose absence changed the outcome.
    separation
        Area under the ROC curve on held-out problems, 0..1: the probability that a block whose absence changed the outcome has a
        higher value than one whose absence did not. 0.5 is chance. None if the held-out problems lack one of the two kinds.
    """

    kind: ClassVar[str] = "fit of ArborKV"
    again: ClassVar[str] = "make one with rksc-tot fit arborkv"
    schema_version: Literal[1] = 1
    model: str
    weights: str
    layers: Annotated[int, Field(ge=1)]
    task: str
    seed: int
    date: dt.date
    problems: Count
    samples: Count
    changed: Count
    separation: Annotated[float, Field(ge=0, le=1)] | None
    theta: Theta
    offset: Finite

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        if not 0 < self.changed < self.samples:
            raise ValueError(
                f"{self.changed} of {self.samples} blocks changed the outcome; a fit needs some of both kinds"
            )
        return self

    def check_task(self, name: str) -> None:
        """Raise ConfigError if the fit was made for another task."""
        self._compare("task", self.task, name)

    def check_model(self, name: str, layers: int, weights: str) -> None:
        """Raise ConfigError if the fit was made for another model. Its layers and weights count, not its name."""
        self._compare("layers", self.layers, layers, f" of {name!r}")
        dtype = " (another dtype changes the weights)" if name == self.model else ""
        self._compare("weights", self.weights[:12], weights[:12], f" of {name!r}{dtype}")

    def _compare(self, what: str, made_for: object, there: object, whose: str = "") -> None:
        if made_for != there:
            raise ConfigError(
                f"the {self.kind} was made for {what} {made_for} of {self.model!r}, not {there}{whose}",
                hint=self.again,
            )


def fit(features: ArrayLike, effect: ArrayLike, ridge: float = 1.0) -> tuple[tuple[float, float, float], float]:
    """Fit θ and offset by logistic regression on whether leaving a block out changed the outcome, by Newton's method.

    It minimises -Σ log P(effect) + ridge/2 · Σ (θ_j s_j)², with s_j the standard deviation of feature j. The penalty is
    independent of a feature's unit, and keeps θ finite for separable data. The offset is not penalised. A constant feature has
    θ_j = 0.

    Parameters
    ----------
    features : array of float
        ``[n, 3]``: search value, boundary entropy and attention of each block left out. NaN means unknown and counts as 0, as
        in :class:`~rksc_tot.policies.compression.arborkv.ArborKV`.
    effect : array of bool
        ``[n]``: whether the outcome changed without the block.
    ridge : float
        Strength of the penalty, above 0; 1 is a prior of standard deviation 1 over the standardised θ.

    Raises
    ------
    ConfigError
        If shapes or values are invalid, if no block or every block changed the outcome, or if all features are constant.
    """
    x, y = _checked(features, effect)
    if not ridge > 0:
        raise ConfigError(f"ridge is {ridge}", hint="give a number above 0, such as 1")
    mean, scale = x.mean(0), x.std(0)
    varies = scale > 1e-12 * np.abs(x).max(0)  # a constant feature tells nothing
    if not varies.any():
        raise ConfigError(
            f"all {len(x)} blocks have the same {', '.join(FEATURES)}", hint="fit on problems whose thoughts differ"
        )
    design = np.column_stack([(x[:, varies] - mean[varies]) / scale[varies], np.ones(len(x))])  # [n, features + 1]
    slopes = _newton(design, y, np.append(np.full(varies.sum(), ridge), 0.0))
    theta = np.zeros(3)
    theta[varies] = slopes[:-1] / scale[varies]
    first, second, third = theta.tolist()
    return (first, second, third), float(slopes[-1] - theta @ mean)


def separation(values: Sequence[float], effect: ArrayLike) -> float | None:
    """Area under the ROC curve of values ``[n]`` for effects ``[n]``, 0..1; 0.5 is chance. None without both kinds of effect."""
    y = np.asarray(effect, dtype=bool)
    _, which, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[which]  # [n], from 1; equal values share their mean rank
    there, absent = int(y.sum()), int((~y).sum())
    if not there or not absent:
        return None
    return float((ranks[y].sum() - there * (there + 1) / 2) / (there * absent))


def _checked(features: ArrayLike, effect: ArrayLike) -> tuple[Numbers, Numbers]:
    x, y = np.asarray(features, dtype=np.float64), np.asarray(effect, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] != len(FEATURES) or y.shape != x.shape[:1]:
        raise ConfigError(
            f"the features have the shape {x.shape} and the effects {y.shape}",
            hint="give arrays of shape [n, 3] and [n]",
        )
    x = np.where(np.isnan(x), 0.0, x)
    if not np.isfinite(x).all() or not np.isin(y, (0.0, 1.0)).all():
        raise ConfigError("a feature is infinite, or an effect is neither true nor false", hint="leave out that block")
    if not 0 < y.sum() < len(y):
        which = "every one" if y.any() else "none"
        raise ConfigError(
            f"of {len(y)} blocks that were left out, {which} changed the outcome", hint="fit on more problems"
        )
    return x, y


def _newton(design: Numbers, y: Numbers, penalty: Numbers) -> Numbers:
    """Newton's method for the logistic loss; a step that does not lower the loss is halved."""

    def loss(at: Numbers) -> float:
        logits = design @ at
        return float(np.logaddexp(0, logits).sum() - y @ logits + penalty @ at**2 / 2)

    at = np.zeros(design.shape[1])
    for _ in range(100):
        p = np.exp(-np.logaddexp(0, -(design @ at)))  # [n]
        gradient = design.T @ (p - y) + penalty * at
        step = np.linalg.solve((design.T * (p * (1 - p))) @ design + np.diag(penalty), gradient)
        size = 1.0
        while loss(at - size * step) > loss(at) and size > 1e-9:
            size /= 2
        at = at - size * step
        if gradient @ step < 1e-12:  # twice the estimated rest of the loss
            break
    return at
