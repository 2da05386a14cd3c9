"""The probe verifier for the game of 24: AUC beside ``lm_value`` and likelihood, and puzzles solved without verifier tokens.

``python -m benchmarks probe [--puzzles FILE --rows 901-1000] [--json] [--quick]``: puzzles of the file, else the embedded model's
held-out puzzles; the shipped probe was fitted to none of them.

* ``auc.VERIFIER.depthD``: AUC of the score among the thoughts of a depth, for whether 24 can still be made. The thoughts are the
  model's own: ``k`` below the root, and below random nodes of each level.
* ``auc.VERIFIER``: mean over depths. ``thoughts.depthD``: number of thoughts, and share from which 24 can be made.
* ``solved.CONTENDER``, ``n``: puzzles whose first answer is right, with 95 % interval; ``verifier_tokens.CONTENDER`` and
  ``tokens.CONTENDER``: rows computed for scores, and all rows, for each puzzle. ``probe_b10`` keeps ten nodes of a level, as a
  search with a free verifier can afford.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.common.report import Quick, Report
from rksc_tot import Verifier, load_engine
from rksc_tot.api.solve_many import asolve_many
from rksc_tot.core.task import Task
from rksc_tot.engine.base import Engine
from rksc_tot.evaluation.intervals import wilson
from rksc_tot.evaluation.probe.examples import grow
from rksc_tot.evaluation.probe.fit import auc_by_depth
from rksc_tot.evaluation.problems import choose_problems
from rksc_tot.search import Search
from rksc_tot.search.scoring import Assessment
from rksc_tot.strategies import BFS
from rksc_tot.tasks import load_task
from rksc_tot.verifiers import Likelihood, LinearProbe, LMValue

K, WIDTH, AT_ONCE = 16, 3, 8
CONTENDERS: dict[str, tuple[Verifier, BFS]] = {
    "probe": (LinearProbe(), BFS(b=5, k=32)),
    "probe_b10": (LinearProbe(), BFS(b=10, k=32)),
    "lm_value": (LMValue(), BFS(b=5, k=32)),
    "likelihood": (Likelihood(), BFS(b=5, k=32)),
}


async def scored_thoughts(task: Task, problem: str, engine: Engine) -> list[tuple[int, bool, dict[str, float]]]:
    """Depth, whether 24 can be made, and the score by each verifier, of the thoughts of one tree."""
    verifiers = {"probe": LinearProbe(), "lm_value": LMValue(), "likelihood": Likelihood()}
    search = Search(task, task.validate(problem), engine, verifiers["probe"])
    try:
        await grow(search, K, WIDTH)
        nodes = [node for node in search.tree if node.parent is not None]
        scores = {name: await verifier.score(search, nodes) for name, verifier in verifiers.items()}
        return [
            (node.depth, bool(task.promising(search.problem, search.path(node))), _numbers(scores, at))
            for at, node in enumerate(nodes)
        ]
    finally:
        search.close()


def _numbers(scores: dict[str, Sequence[Any]], at: int) -> dict[str, float]:
    found = {name: each[at] for name, each in scores.items()}
    return {name: score.score for name, score in found.items() if isinstance(score, Assessment)}


async def aucs(task: Task, problems: Sequence[str], engine: Engine) -> dict[str, Any]:
    """AUC by verifier and depth, and the number of thoughts."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(problem: str) -> list[tuple[int, bool, dict[str, float]]]:
        async with gate:
            return await scored_thoughts(task, problem, engine)

    found = [thought for group in await asyncio.gather(*map(one, problems)) for thought in group]
    depth, right = np.array([d for d, _, _ in found]), np.array([float(r) for _, r, _ in found])
    figures: dict[str, Any] = {}
    for name in ("probe", "lm_value", "likelihood"):
        by_depth = auc_by_depth(np.array([scores[name] for *_, scores in found]), right, depth)
        figures[f"auc.{name}"] = round(float(np.mean([*by_depth.values()])), 4)
        figures |= {f"auc.{name}.depth{d}": round(auc, 4) for d, auc in by_depth.items()}
    for d in np.unique(depth):
        figures[f"thoughts.depth{d}"] = [int((depth == d).sum()), round(float(right[depth == d].mean()), 3)]
    return figures


async def solved(task: Task, problems: Sequence[str], engine: Engine, name: str) -> dict[str, Any]:
    """Puzzles solved by one contender, and its rows."""
    verifier, strategy = CONTENDERS[name]
    right, scoring, rows = 0, 0, 0
    async for outcome in asolve_many(
        task, problems, engine=engine, strategy=strategy, verifier=verifier, concurrency=AT_ONCE
    ):
        if outcome.result is None:
            raise RuntimeError(outcome.failure)
        ledger = outcome.result.ledger
        right += outcome.result.correct is True
        scoring += ledger.verifier_tokens
        rows += ledger.prefill_tokens + ledger.verifier_tokens
    low, high = wilson(right, len(problems))
    return {
        f"solved.{name}": right,
        f"interval.{name}": [round(low, 3), round(high, 3)],
        f"verifier_tokens.{name}": round(scoring / len(problems), 1),
        f"tokens.{name}": round(rows / len(problems), 1),
    }


def main(
    puzzles: Annotated[Path | None, typer.Option(help="A ranked csv of puzzles.")] = None,
    rows: Annotated[str | None, typer.Option(help="Ranks of the csv, such as 901-1000.")] = None,
    quick: Quick = False,
) -> Report:
    """``quick``: eight puzzles, without the comparison with ``lm_value`` and likelihood."""
    problems = choose_problems(file=puzzles, rows=rows, held_out=puzzles is None)
    names = ["probe"] if quick else [*CONTENDERS]
    problems = problems[:8] if quick else problems
    engine, task = load_engine(), load_task("game24")
    try:
        figures = asyncio.run(aucs(task, problems, engine))
        for name in names:
            figures |= asyncio.run(solved(task, problems, engine, name))
    finally:
        engine.close()
    fit = LinearProbe().fit
    layers = {f"layer.depth{head.depth}" if head.depth else "layer.others": head.layer for head in fit.heads}
    return Report(
        {**figures, "n": len(problems), **layers},
        {"fitted_on": fit.problems, "labels": fit.labels},
    )
