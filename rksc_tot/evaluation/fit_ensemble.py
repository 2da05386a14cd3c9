"""Fits an ensemble: learns its weights from chains that the task's check labels as right or wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rksc_tot.api.sync import run_async
from rksc_tot.core.errors import TaskError
from rksc_tot.core.task import Task
from rksc_tot.engine.base import Engine
from rksc_tot.search import Search
from rksc_tot.search.task_calls import read_answer, read_verdict, validated
from rksc_tot.tasks import load_task

if TYPE_CHECKING:
    from rksc_tot.core.tree import Node
    from rksc_tot.verifiers import Ensemble


def fit_ensemble(
    ensemble: Ensemble,
    task: Task | str,
    problems: Sequence[Any],
    *,
    engine: Engine,
    chains: int = 8,
    seed: int = 0,
    on_problem: Callable[[Any], None] = lambda problem: None,
) -> Ensemble:
    """A copy of an ensemble with learned weights.

    For each problem, chains are sampled at the task's temperature. A thought counts as right once for each right chain that
    contains it, and as wrong once for each wrong one. The weights are those of a logistic regression on the members' scores.

    Parameters
    ----------
    ensemble : Ensemble
        Its members are used; its other weights are not.
    task : Task or str
        Its ``check`` says whether an answer is right; chains that it cannot judge are left out.
    problems : sequence
        Problems that are not those to be evaluated on.
    engine : Engine
    chains : int
        Chains for each problem.
    seed : int
        Seed of all random draws.
    on_problem : callable
        Called after each problem.

    Raises
    ------
    ConfigError
        If all chains are right, or none is.
    TaskError
        If the task refuses a problem, or its check fails.
    """
    task = load_task(task) if isinstance(task, str) else task

    async def fit() -> Ensemble:
        features: list[list[float]] = []
        right: list[bool] = []
        for problem in problems:
            for row, is_right in await labelled(ensemble, task, problem, engine, chains, seed):
                features.append(row)
                right.append(is_right)
            on_problem(problem)
        return ensemble.fitted(features, right)

    return run_async(fit())


async def labelled(
    ensemble: Ensemble, task: Task, problem: Any, engine: Engine, chains: int, seed: int
) -> list[tuple[list[float], bool]]:
    """The members' scores of each thought of each complete chain, and whether the chain is right."""
    from rksc_tot.strategies.chain import generate_chains

    search = Search(task, validated(task, problem), engine, ensemble, seed=seed)
    try:
        ends = await generate_chains(search, chains)
        visits: list[tuple[Node, bool, int]] = []
        for end in ends:
            answer, _ = read_answer(task, search.problem, search.path(end))
            correct, fault = (None, None) if answer is None else read_verdict(task, search.problem, answer)
            if fault is not None:
                raise TaskError(str(fault), hint="run check_task for details")
            if correct is not None:
                visits += [(node, correct, end.count) for node in search.tree.lineage(end)[1:] if node.text]
        nodes = list({node.id: node for node, _, _ in visits}.values())
        rows = (
            dict(zip([node.id for node in nodes], await ensemble.features(search, nodes), strict=True)) if nodes else {}
        )
        return [(row, correct) for node, correct, count in visits for row in [rows[node.id]] * count if row is not None]
    finally:
        search.close()
