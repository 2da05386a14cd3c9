"""Logistic regression on hidden states, with soft labels and a ridge."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

RIDGE = 1e-3  # on standardised features, for each example
MOST_STEPS = 30
ENOUGH = 1e-6  # largest change of a weight in the last step


def fit_logistic(x: Numbers, y: Numbers) -> tuple[Numbers, float]:
    """Weights ``[H]`` and offset that maximise the likelihood of labels ``y [n]``, 0..1, given features ``x [n, H]``.

    Newton's method on standardised features; a step that does not lower the loss is halved.
    """
    mean, scale = x.mean(0), x.std(0)
    scale[scale < 1e-8] = 1.0  # a constant feature gets no weight
    design = np.column_stack([(x - mean) / scale, np.ones(len(x))])  # [n, H + 1]
    rough = design.astype(np.float32)  # enough for the curvature, which only scales the steps
    penalty = np.full(design.shape[1], RIDGE * len(x))
    penalty[-1] = 0.0
    theta = np.zeros(design.shape[1])
    loss = _loss(design, y, penalty, theta)
    for _ in range(MOST_STEPS):
        p = _sigmoid(design @ theta)
        gradient = design.T @ (p - y) + penalty * theta
        spread = (p * (1 - p)).astype(np.float32)
        curvature = ((rough * spread[:, None]).T @ rough).astype(np.float64) + np.diag(penalty + 1e-6)
        step = np.linalg.solve(curvature, gradient)
        while (lower := _loss(design, y, penalty, theta - step)) > loss and np.abs(step).max() > ENOUGH:
            step /= 2
        if lower > loss:
            break
        theta, loss = theta - step, lower
        if np.abs(step).max() <= ENOUGH:
            break
    weight = theta[:-1] / scale
    return weight, float(theta[-1] - weight @ mean)


def _loss(design: Numbers, y: Numbers, penalty: Numbers, theta: Numbers) -> float:
    logits = design @ theta
    return float((np.logaddexp(0, logits) - y * logits).sum() + (penalty * theta**2).sum() / 2)


def _sigmoid(logits: Numbers) -> Numbers:
    return np.exp(-np.logaddexp(0, -logits))
