"""Fits a probe: labelled hidden states of every layer, a logistic head for each, the best layer on held-out problems."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rksc_tot.api.setup import Setup
from rksc_tot.api.sync import run_async
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.seeds import stream_key
from rksc_tot.core.task import Task
from rksc_tot.engine.base import Engine, StatesEngine
from rksc_tot.evaluation.probe.examples import LabelledThought, examples_of
from rksc_tot.evaluation.probe.logistic import fit_logistic
from rksc_tot.evaluation.problems import refuse_repeats
from rksc_tot.policies.compression.arborkv_fit import separation
from rksc_tot.search.approximate.calibration import Probe
from rksc_tot.search.approximate.fingerprint import task_fingerprint, weights_of
from rksc_tot.verifiers.probe import Labels, ProbeFit, ProbeHead

HELD_OUT = 0.25  # share of the problems that the layer is chosen on
FEWEST_PROBLEMS = 8
ENOUGH_FOR_A_DEPTH = 20  # thoughts of each kind, for a head of its own


def fit_probe(
    task: Task | str,
    problems: Sequence[Any],
    *,
    engine: Engine,
    labels: Labels = "rollouts",
    k: int = 16,
    width: int = 8,
    seed: int = 0,
    concurrency: int = 8,
    on_problem: Callable[[Any], None] = lambda problem: None,
) -> ProbeFit:
    """Fit a probe to a model and a task.

    For each problem, a tree of the model's own thoughts is grown and labelled, see
    :func:`rksc_tot.evaluation.probe.examples.examples_of`. A head is fitted for each layer on three quarters of the problems, the
    layer with the best AUC on the others is chosen, and its head is fitted again on all problems: one head for each depth with
    enough thoughts of both kinds, and one for all other depths.

    Parameters
    ----------
    task : Task or str
    problems : sequence
        Typical problems, without repeats.
    engine : Engine
        An engine of :func:`rksc_tot.load_engine`.
    labels : {"rollouts", "checker"}
        ``rollouts``: the share of right answers among the paths below a thought, by ``task.check``. ``checker``:
        ``task.promising``.
    k, width : int
        Thoughts below a node; nodes of a level that get thoughts.
    seed : int
        Seed of every random stream. The result depends on nothing else.
    concurrency : int
        Problems at the same time.
    on_problem : callable
        Called after each problem.

    Raises
    ------
    ConfigError
        If the engine keeps no hidden states, the task has no labels, or there is too little to learn from.
    """
    return run_async(_fit_probe(task, problems, engine, labels, k, width, seed, concurrency, on_problem))


async def _fit_probe(
    task: Task | str,
    problems: Sequence[Any],
    engine: Engine,
    labels: Labels,
    k: int,
    width: int,
    seed: int,
    concurrency: int,
    on_problem: Callable[[Any], None],
) -> ProbeFit:
    chosen = Setup.of(task, engine).task
    if not isinstance(engine, StatesEngine) or not engine.layers:
        raise ConfigError(f"{engine.name!r} keeps no hidden states", hint="use an engine of load_engine")
    if len(problems) < FEWEST_PROBLEMS:
        raise ConfigError(f"{len(problems)} problems are too few", hint=f"give at least {FEWEST_PROBLEMS}")
    refuse_repeats(chosen, problems)
    gate = asyncio.Semaphore(concurrency)

    async def examples(problem: Any) -> list[LabelledThought]:
        async with gate:
            try:
                return await examples_of(chosen, problem, engine, labels, k, width, seed)
            finally:
                on_problem(problem)

    found = await asyncio.gather(*map(examples, problems))
    states, y, depth, of = _arrays(found)
    drawn = random.Random(stream_key(seed, "probe")).sample(range(len(problems)), round(HELD_OUT * len(problems)))
    heads = fit_heads(states, y, depth, np.isin(of, drawn))
    path = Probe(problem=cast("Any", problems[0]))
    return ProbeFit(
        model=engine.name,
        weights=weights_of(engine),
        layers=engine.layers,
        task=chosen.name or type(chosen).__name__,
        prompt=task_fingerprint(chosen, path.problem, path.thoughts).hash,
        path=path,
        heads=heads,
        labels=labels,
        problems=len(problems),
        thoughts=len(y),
        seed=seed,
        date=dt.datetime.now(dt.UTC).date(),
    )


def auc_by_depth(scores: NDArray[Any], y: NDArray[Any], depth: NDArray[Any]) -> dict[int, float]:
    """AUC of scores among the thoughts of each depth that has both kinds; a label of at least a half is right."""
    found = {int(d): separation(scores[depth == d].tolist(), y[depth == d] >= 0.5) for d in np.unique(depth)}
    return {d: auc for d, auc in found.items() if auc is not None}


def fit_heads(
    states: NDArray[np.float32], y: NDArray[Any], depth: NDArray[Any], held_out: NDArray[Any]
) -> tuple[ProbeHead, ...]:
    """Heads from states ``[n, L, H]``, labels, depths, and which thoughts the layer is chosen on."""
    heads = []
    for d in map(int, np.unique(depth)):
        own = depth == d
        fitting = y[own & ~held_out]
        if min((fitting >= 0.5).sum(), (fitting < 0.5).sum()) >= ENOUGH_FOR_A_DEPTH:
            heads.append(_head(d, states[own], y[own], held_out[own]))
    return (*heads, _head(None, states, y, held_out))


def _head(depth: int | None, states: NDArray[np.float32], y: NDArray[Any], held_out: NDArray[Any]) -> ProbeHead:
    layers = range(states.shape[1])
    auc = []
    for layer in layers:
        weight, _ = fit_logistic(states[~held_out, layer].astype(np.float64), y[~held_out])
        auc.append(separation((states[held_out, layer] @ weight).tolist(), y[held_out] >= 0.5))
    best = max(layers, key=lambda layer: -1.0 if (value := auc[layer]) is None else value)
    weight, offset = fit_logistic(states[:, best].astype(np.float64), y)
    rounded = tuple(float(f"{w:.6g}") for w in weight)
    return ProbeHead(depth=depth, layer=best + 1, weight=rounded, offset=offset, auc=tuple(auc))


def _arrays(
    found: Sequence[Sequence[LabelledThought]],
) -> tuple[NDArray[np.float32], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """States ``[n, L, H]``, labels, depths, and the number of each example's problem.

    Raises
    ------
    ConfigError
        If all thoughts have the same label.
    """
    examples = [(example, at) for at, group in enumerate(found) for example in group]
    y = np.array([example.label for example, _ in examples])
    if len(y) < 2 or y.min() == y.max():
        what = "no thought" if not len(y) else "every thought" if y.max() else "none of the thoughts"
        raise ConfigError(
            f"of {len(y)} thoughts, {what} leads to a right answer",
            hint="fit on more problems, or easier or harder ones",
        )
    return (
        np.stack([example.states for example, _ in examples]),
        y,
        np.array([example.depth for example, _ in examples]),
        np.array([at for _, at in examples]),
    )
