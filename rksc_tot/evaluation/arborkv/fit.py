"""The procedure: search problems with all KV kept, leave thoughts out one at a time, fit θ to what that changed."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rksc_tot.api.setup import Setup
from rksc_tot.api.sync import run_async
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.seeds import stream_key
from rksc_tot.core.task import Task
from rksc_tot.evaluation.problems import refuse_repeats
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.arborkv_fit import FEATURES, ArborFit, fit, separation
from rksc_tot.search.approximate.fingerprint import weights_of

if TYPE_CHECKING:
    from rksc_tot.engine.base import Engine
    from rksc_tot.evaluation.arborkv.leave_one_out import Sample
    from rksc_tot.strategies.base import Strategy

MEASURING = ArborKV(rehydrate=False)
"""What an engine must keep to be measured on: it notes what θ is about, and lets a path be what is left of it."""
LEAST = 10  # thoughts of either kind: those whose absence changed the outcome, and those without which it was the same
FOLDS = 5
RESAMPLED = 1000
LEVEL = 0.95

Numbers = NDArray[np.float64]


class Feature(NamedTuple):
    """What is known of one feature: its θ, its mean over the thoughts that mattered and the others (NaN: nowhere known), and
    how well it tells them apart alone.
    """

    name: str
    theta: float
    changed: float
    unchanged: float
    alone: float | None


class Fitted(NamedTuple):
    """A fit, the 95 % interval of its separation (None where it has none), and its features one by one."""

    fit: ArborFit
    interval: tuple[float, float] | None
    features: list[Feature]


def fit_arborkv(
    task: Task | str,
    problems: Sequence[Any],
    *,
    engine: Engine,
    strategy: Strategy | str = "bfs",
    seed: int = 0,
    on_problem: Callable[[Any], None] = lambda problem: None,
) -> Fitted:
    """Find θ of ArborKV for a model and a task, see :func:`rksc_tot.evaluation.arborkv.leave_one_out.samples_of`.

    How well it separates is found by cross-fitting: each thought is valued by a fit to the problems of four other fifths; the
    interval is a bootstrap over problems. θ itself is fitted to all. Problems are searched one after the other, and everything
    follows from the seed.

    Parameters
    ----------
    task : Task or str
    problems : sequence
        Of the kind searches will meet, each of them once.
    engine : TransformersEngine
        Made with ``compress=MEASURING``, and a KV budget that holds all of a search.
    strategy : Strategy or str
        How to search.
    seed : int
        Of every random draw.
    on_problem : callable
        Called after each problem.

    Raises
    ------
    ConfigError
        If the engine is not one to measure on, or too few thoughts matter, or too few do not; it says what would help.
    Exception
        The error of the first problem, if all of them failed.
    """
    return run_async(_fit_arborkv(task, problems, engine, strategy, seed, on_problem))


async def _fit_arborkv(
    task: Task | str,
    problems: Sequence[Any],
    engine: Engine,
    strategy: Strategy | str,
    seed: int,
    on_problem: Callable[[Any], None],
) -> Fitted:
    from rksc_tot.engine.transformers_engine.engine import TransformersEngine
    from rksc_tot.evaluation.arborkv.leave_one_out import samples_of

    setup = Setup.of(task, engine, strategy, seed=seed)
    if not isinstance(engine, TransformersEngine):
        raise ConfigError(
            f"{engine.name!r} has no KV to leave out", hint="measure on a model, such as one of load_engine"
        )
    if engine.compression != MEASURING or engine.numerics["lossless"]:
        raise ConfigError(
            f"{engine.name!r} keeps KV otherwise than it takes to measure what it is worth",
            hint="load it with compress=MEASURING of rksc_tot.evaluation.arborkv.fit, and without lossless",
        )
    refuse_repeats(setup.task, problems)
    found: list[list[Sample]] = []
    errors: list[Exception] = []
    for problem in problems:
        try:
            found.append(await samples_of(setup, engine, problem))
        except ConfigError:
            raise
        except Exception as error:  # a bad problem must not end the run, whatever a plug-in raises on it
            errors.append(error)
        finally:
            on_problem(problem)
    if errors and not found:
        raise errors[0]
    _check(found)
    x, y, of = _arrays(found)
    theta, offset = fit(x, y)
    values = _cross_fitted(x, y, of, len(found), seed)
    return Fitted(
        ArborFit(
            model=engine.name,
            weights=weights_of(engine),
            layers=engine.layers,
            task=setup.task.name or type(setup.task).__name__,
            seed=seed,
            date=dt.datetime.now(dt.UTC).date(),
            problems=len(found),
            samples=len(y),
            changed=int(y.sum()),
            separation=None if values is None else separation(values.tolist(), y),
            theta=theta,
            offset=offset,
        ),
        None if values is None else interval(values, y, of, seed),
        [_feature(name, theta[n], x[:, n], y) for n, name in enumerate(FEATURES)],
    )


def _check(found: Sequence[Sequence[Sample]]) -> None:
    """Refuse what nothing can be learnt from.

    Raises
    ------
    ConfigError
        It says what would help.
    """
    samples = [sample for of_problem in found for sample in of_problem]
    if not samples:
        raise ConfigError(
            f"in {len(found)} searches nothing was answered after two thoughts or more, so there is none to leave out",
            hint="give problems that the search answers, by several thoughts each",
        )
    changed = sum(sample.changed for sample in samples)
    rarer = min(changed, len(samples) - changed)
    if rarer >= LEAST:
        return
    kind = "changed the outcome" if changed == rarer else "left it as it was"
    more = f"give about {math.ceil(1.5 * LEAST * len(found) / rarer)} problems" if rarer else "give more problems"
    hint = f"{more}, or others" if changed != rarer else f"{more}, or such as the search solves, by thoughts it needs"
    raise ConfigError(
        f"of {len(samples)} thoughts that were left out, one at a time, {rarer} {kind}; a fit takes {LEAST} of either kind",
        hint=hint,
    )


def _arrays(found: Sequence[Sequence[Sample]]) -> tuple[Numbers, NDArray[np.bool_], NDArray[np.int64]]:
    """Features ``[n, 3]``, effects ``[n]``, and from which problem each is ``[n]``."""
    rows = [(at, sample) for at, of_problem in enumerate(found) for sample in of_problem]
    x = np.array([(sample.value, sample.entropy, sample.attention) for _, sample in rows], dtype=np.float64)
    return x, np.array([sample.changed for _, sample in rows]), np.array([at for at, _ in rows])


def _cross_fitted(x: Numbers, y: NDArray[np.bool_], of: NDArray[np.int64], problems: int, seed: int) -> Numbers | None:
    """The value of each thought by a fit that has not seen its problem ``[n]``; None where a fit has one kind only to go by."""
    order = list(range(problems))
    random.Random(stream_key(seed, "folds")).shuffle(order)
    fold = np.empty(problems, dtype=np.int64)
    fold[order] = np.arange(problems) % FOLDS
    values = np.zeros(len(y))
    for n in range(FOLDS):
        own = fold[of] == n
        if not own.any():
            continue
        try:
            theta, offset = fit(x[~own], y[~own])
        except ConfigError:
            return None
        values[own] = np.nan_to_num(x[own]) @ np.array(theta) + offset
    return values


def interval(values: Numbers, y: NDArray[np.bool_], of: NDArray[np.int64], seed: int) -> tuple[float, float] | None:
    """A 95 % interval of how well values tell apart: percentiles over problems drawn with replacement, since thoughts of one
    problem are not independent. None where no such draw has both kinds.
    """
    rng = np.random.default_rng(stream_key(seed, "interval"))
    rows = [np.flatnonzero(of == at) for at in np.unique(of)]
    found = []
    for _ in range(RESAMPLED):
        drawn = np.concatenate([rows[at] for at in rng.integers(len(rows), size=len(rows))])
        if (one := separation(values[drawn].tolist(), y[drawn])) is not None:
            found.append(one)
    if not found:
        return None
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _feature(name: str, theta: float, x: Numbers, y: NDArray[np.bool_]) -> Feature:
    known = ~np.isnan(x)
    mean, elsewhere = (float(x[known & of].mean()) if (known & of).any() else math.nan for of in (y, ~y))
    return Feature(name, theta, mean, elsewhere, separation(np.nan_to_num(x).tolist(), y))
