"""Calls a compression policy and checks its selection; selects the tokens with the highest scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from rksc_tot.core.errors import CompressionError
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, shown
from rksc_tot.core.seeds import stream_key
from rksc_tot.policies.compression.base import CompressionPolicy, Floats, Kept, PathPolicy, View


def selection_rng(*names: object) -> np.random.Generator:
    """A random stream of its own for these names (policy seed, path, number of selections), whatever the order of calls."""
    return np.random.Generator(np.random.Philox(key=stream_key(*names)))


def chosen(policy: CompressionPolicy, view: View, budget: int, rng: np.random.Generator) -> Kept:
    """Call :meth:`CompressionPolicy.select` and check its result.

    Raises
    ------
    CompressionError
        If the policy raises or returns an invalid selection. The message names the policy and the fault.
    """
    name = f"{policy.kind} {policy.called!r}"
    try:
        with calling_user_code(f"its select, with {len(view)} tokens and a budget of {budget},", CompressionError):
            kept = policy.select(view, budget, rng)
            sets = (view.layers, view.heads) if policy.per_head else ()
            pinned = policy.pinned(view) if isinstance(policy, PathPolicy) else 0
    except UserCodeError as raised:
        unseen = view.attention is None and "NoneType" in str(raised)
        hint = "override heeds_attention if it needs view.attention, which is None" if unseen else "correct the policy"
        raise CompressionError(f"{name}: {raised}", hint=hint) from raised.error
    if fault := _fault(kept, (*sets, min(budget, len(view))), len(view), min(pinned, budget, len(view))):
        raise CompressionError(f"{name} {fault}", hint="correct its select")
    return kept.astype(np.int64, copy=False)


def _fault(kept: Any, shape: tuple[int, ...], n: int, pinned: int) -> str | None:
    """Why a selection among ``n`` tokens is invalid, as a predicate such as ``keeps a token twice``; None if it is valid."""
    if type(kept) is not np.ndarray or kept.dtype.kind not in "iu":  # a subclass of ndarray may override comparisons
        return f"returned {shown(kept)}, not an array of integers"
    if kept.ndim != len(shape) or kept.shape[:-1] != shape[:-1]:
        return f"returned the shape {kept.shape}, not {shape}"
    if kept.shape != shape:
        than = "more" if kept.shape[-1] > shape[-1] else "fewer"
        return f"keeps {kept.shape[-1]} of {n} tokens, {than} than the required {shape[-1]}"
    foreign = kept[(kept < 0) | (kept >= n)]
    if foreign.size:
        return f"keeps token {foreign[0]} of {n}, counted from 0"
    steps = np.diff(kept.astype(np.int64), axis=-1)
    if (steps == 0).any():
        return "keeps a token twice"
    if (steps < 0).any():
        return "returned tokens that do not ascend"
    return "drops tokens of the pinned prompt" if (kept[..., :pinned] != np.arange(pinned)).any() else None


def highest(scores: Floats, budget: int, first: int = 0) -> Kept:
    """The ``first`` tokens and those with the highest scores: ``budget`` in all, ascending. Ties go to later tokens.

    Parameters
    ----------
    scores : array of float
        ``[..., n]``, not NaN.
    budget : int
        Number of tokens to keep. If it is below ``first``, the first ``budget`` tokens are returned.
    first : int
        Number of first tokens that are kept whatever their scores.

    Returns
    -------
    array of int
        ``[..., min(budget, n)]``.
    """
    budget = min(budget, scores.shape[-1])
    first = min(first, budget)
    stays = np.zeros(scores.shape, dtype=bool)
    stays[..., :first] = True
    if room := budget - first:
        rest = scores[..., first:]
        least = np.partition(rest, -room, axis=-1)[..., -room, None]  # the lowest score that stays
        above, equal = rest > least, rest == least
        later = np.cumsum(equal[..., ::-1], axis=-1)[..., ::-1]  # number of equal scores from here on
        stays[..., first:] = above | (equal & (later <= room - above.sum(-1, keepdims=True)))
    return np.nonzero(stays)[-1].reshape(*scores.shape[:-1], budget)
