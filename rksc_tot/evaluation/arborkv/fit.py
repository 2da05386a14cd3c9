"""Fits θ of ArborKV: search problems on the full KV, leave out thoughts one at a time, fit θ to the changed outcomes."""

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
"""The policy for measurements: it records the features of thoughts, and does not recompute dropped KV."""
LEAST = 10  # least number of thoughts whose absence changed the outcome, and of those whose absence did not
FOLDS = 5
RESAMPLED = 1000
LEVEL = 0.95

Numbers = NDArray[np.float64]


class Feature(NamedTuple):
    """One feature of a fit.

    * ``theta``: its θ.
    * ``changed``, ``unchanged``: its mean over thoughts whose absence changed the outcome, and over the others; NaN if unknown.
    * ``alone``: its separation without the other features, see :func:`separation`.
    """

    name: str
    theta: float
    changed: float
    unchanged: float
    alone: float | None


class Fitted(NamedTuple):
    """A fit, the 95 % interval of its separation (None if it has none), and its features."""

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
    """Fit θ of ArborKV to a model and a task, on the data of :func:`rksc_tot.evaluation.arborkv.leave_one_out.samples_of`.

    The separation is estimated by five-fold cross-fitting over problems, its interval by a bootstrap over problems. θ itself is
    fitted to all problems. Problems are searched one after the other. The result depends on the seed only.

    Parameters
    ----------
    task : Task or str
    problems : sequence
        Typical problems, without repeats.
    engine : TransformersEngine
        An engine with ``compress=MEASURING`` and a KV budget for all KV of a search.
    strategy : Strategy or str
        The strategy of the searches.
    seed : int
        Seed of every random stream.
    on_problem : callable
        Called after each problem.

    Raises
    ------
    ConfigError
        If the engine does not fit, or one of the two kinds of thoughts is too rare.
    Exception
        The error of the first problem, if all problems failed.
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
        raise ConfigError(f"{engine.name!r} has no KV to leave out", hint="use an engine of load_engine")
    if engine.compression != MEASURING or engine.numerics["lossless"]:
        raise ConfigError(
            f"{engine.name!r} has another compression policy than a fit needs",
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
        except Exception as error:  # one bad problem must not end the run
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
    """Check that there are enough thoughts of both kinds.

    Raises
    ------
    ConfigError
        If there are not. The hint says how many problems would help.
    """
    samples = [sample for of_problem in found for sample in of_problem]
    if not samples:
        raise ConfigError(
            f"{len(found)} searches gave no answer with two thoughts or more, so no thought can be left out",
            hint="give problems that the search answers in several thoughts",
        )
    changed = sum(sample.changed for sample in samples)
    rarer = min(changed, len(samples) - changed)
    if rarer >= LEAST:
        return
    kind = "changed the outcome" if changed == rarer else "did not change the outcome"
    more = f"give about {math.ceil(1.5 * LEAST * len(found) / rarer)} problems" if rarer else "give more problems"
    hint = (
        f"{more}, or other ones"
        if changed != rarer
        else f"{more}, or problems that the search solves in several thoughts"
    )
    raise ConfigError(
        f"of {len(samples)} thoughts that were left out, {rarer} {kind}; a fit needs {LEAST} of each kind",
        hint=hint,
    )


def _arrays(found: Sequence[Sequence[Sample]]) -> tuple[Numbers, NDArray[np.bool_], NDArray[np.int64]]:
    """Features ``[n, 3]``, effects ``[n]``, and the index of the problem of each thought ``[n]``."""
    rows = [(at, sample) for at, of_problem in enumerate(found) for sample in of_problem]
    x = np.array([(sample.value, sample.entropy, sample.attention) for _, sample in rows], dtype=np.float64)
    return x, np.array([sample.changed for _, sample in rows]), np.array([at for at, _ in rows])


def _cross_fitted(x: Numbers, y: NDArray[np.bool_], of: NDArray[np.int64], problems: int, seed: int) -> Numbers | None:
    """The value ``[n]`` of each thought by a fit without its problem; None if a fold lacks one of the two kinds."""
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
    """A 95 % bootstrap interval of the separation. Problems are resampled, as thoughts of one problem are not independent.

    None if no resample has both kinds of thoughts.
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
