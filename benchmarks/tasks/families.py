"""Solved held-out problems of the tasks with embedded models beside game24: greedy chains, samples and searches.

``python -m benchmarks families [--family NAME] [--model FOLDER] [--json] [--quick]``. The problems are the held-out ones of
``held_out.json`` beside the weights. Figures of each family and strategy:

* ``solved``: solved problems of ``n``; ``low``, ``high``: 95 % Wilson interval of the share
* ``tokens``: sampled tokens of all branches; ``verifier_tokens``: tokens of questions; ``nodes``; ``seconds``
* ``beats_greedy``: strategies whose interval lies above that of the greedy chain
"""

from __future__ import annotations

import json
import random
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.common.report import Quick, Report
from rksc_tot import load_engine
from rksc_tot.evaluation import Comparison, Row
from rksc_tot.evaluation.contenders import EXACT, Contender
from rksc_tot.tasks import load_task

FAMILIES = ("sudoku4", "countdown")


def contenders(task: str) -> list[Contender]:
    """The rows of a family's table."""
    return [
        Contender("greedy chain", task, "cot"),
        Contender("self-consistency n=20", task, "self_consistency", {"n": 20}),
        Contender("BFS", task, "bfs"),
        Contender("BFS, random values (control)", task, "bfs", verifier="random"),
        Contender("beam", task, "beam"),
        Contender("DFS", task, "dfs"),
        Contender(
            "best-of-n with an exact checker, at equal tokens", task, "best_of_n",
            verifier=EXACT, equals="BFS", price="self-consistency n=20",
        ),
    ]  # fmt: skip


def held_out(family: str) -> list[str]:
    """The held-out problems of a family."""
    file = files("rksc_tot.tasks.embedded") / "weights" / family / "held_out.json"
    found: list[str] = json.loads(file.read_text(encoding="utf-8"))["roots"]
    return found


def figures(row: Row) -> dict[str, Any]:
    """The numbers of a row."""
    kept = ("solved", "n", "low", "high", "tokens", "verifier_tokens", "nodes", "seconds")
    return {name: value for name, value in row.model_dump().items() if name in kept} | {"failures": len(row.failures)}


def main(
    quick: Quick = False,
    family: Annotated[list[str] | None, typer.Option(help="only this family; repeatable")] = None,
    model: Annotated[Path | None, typer.Option(help="folder of a model; default: the embedded one")] = None,
    problems: Annotated[int, typer.Option(help="most problems")] = 100,
) -> Report:
    """Run every strategy on the held-out problems of each family."""
    found: dict[str, Any] = {}
    for name in family or FAMILIES:
        task = load_task(name)
        chosen = random.Random(0).sample(held_out(name), 4 if quick else min(problems, len(held_out(name))))
        comparison = Comparison(chosen, lambda task=task: load_engine(model or task.default_model))
        rows: list[Row] = []
        for contender in contenders(name)[: 3 if quick else None]:
            rows.append(comparison.run(contender, rows))
        greedy = rows[0]
        found[name] = {row.strategy: figures(row) for row in rows}
        found[name]["beats_greedy"] = ", ".join(row.strategy for row in rows[1:] if row.low > greedy.high)
    return Report(found)
