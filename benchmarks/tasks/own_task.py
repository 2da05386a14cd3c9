"""How much code a task of one's own takes, and how many searches on rows end with an answer.

``python -m benchmarks own_task [--rows FILE --model FOLDER] [--limit 40] [--dtype bfloat16] [--json] [--quick]``. Without a
file: eight puzzles of the game of 24 as rows, on the embedded model. A file of rows has the fields ``question`` and ``answer``,
as that of GSM8K; a thought is a paragraph. All strategies use the verifier ``likelihood``; ``cot`` is greedy.

* ``lines.KIND.TASK``: lines of the user's code of each of the eight tasks of ``benchmarks/tasks/eight_tasks.py``, without
  imports; ``lines_most.KIND``: the longest (marks: 6 of rows, 10 of functions, 25 of a class)
* ``ran``: how many of the eight tasks ran without an error on the embedded model, which is given a chat template for it
* ``n``: rows
* ``answered.STRATEGY``: share of searches that end with an answer (mark: 0.98)
* ``answered_without_closing.STRATEGY``: the same if paths are not asked for their answers; with ``--no-without`` not measured
* ``solved.STRATEGY``: searches with the right answer, with ``.low`` and ``.high``, the 95 % Wilson interval of the number
* ``tokens.STRATEGY``, ``seconds.STRATEGY``: tokens sampled in all searches, and their time
* ``at_least_greedy``: whether every strategy solves at least as many as ``cot``; ``below_greedy``: those that do not
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.common.report import Quick, Report
from benchmarks.tasks.eight_tasks import ROWS, TASKS
from rksc_tot import compare, load_engine, rows_task
from rksc_tot.engine.base import Engine
from rksc_tot.evaluation import Row
from rksc_tot.tasks.rows.task import RowsTask

CONTENDERS: dict[str, dict[str, Any]] = {
    "cot": {},
    "self_consistency": {"n": 6},
    "best_of_n": {"n": 6},
    "beam": {"b": 3, "k": 2},
    "bfs": {"b": 3, "k": 2},
    "dfs": {"k": 2},
}
PUZZLES = ("4 5 6 10", "2 5 8 11", "1 2 3 4", "3 3 8 8", "2 3 5 12", "4 4 10 10", "1 5 5 5", "6 6 6 6")
TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
QUESTION = "{question}\nSolve it in a few short steps, without code."


def lines_of(function: Callable[..., Any]) -> int:
    """The lines of a function's body that are not blank."""
    body = inspect.getsource(function).split("\n")[1:]
    return sum(bool(line.strip()) for line in body)


def lines() -> dict[str, Any]:
    """The lines of each task, and the most of each kind."""
    each = {kind: {task.__name__: lines_of(task) for task in tasks} for kind, tasks in TASKS.items()}
    return {"lines": each, "lines_most": {kind: max(found.values()) for kind, found in each.items()}}


def run_all(engine: Engine) -> int:
    """Run the eight tasks on a problem each; returns how many ended without an error."""
    ran = 0
    for tasks in TASKS.values():
        for task in tasks:
            [outcome] = task(engine, ROWS[task.__name__])
            ran += outcome.failure is None
            note(f"{task.__name__}: {outcome.verdict} {outcome.failure or ''}")
    return ran


def own_rows(file: Path | None, limit: int | None) -> RowsTask:
    """The task of the file's rows, or of puzzles."""
    if file is None:
        rows = [{"question": puzzle, "answer": "24"} for puzzle in PUZZLES]
        task = rows_task(rows, prompt="steps {question}\n", max_thoughts=4)
    else:
        task = rows_task(
            file, prompt=QUESTION, target_answer="after:####", thoughts="paragraphs",
            temperature=0.7, max_thoughts=8, max_thought_tokens=160,
        )  # fmt: skip
    task.problems = task.problems[:limit]
    return task


def measure(task: RowsTask, engine: Engine, strategies: list[str], title: str) -> list[Row]:
    """A row for each strategy."""
    contenders = [{"label": name, "strategy": name, "settings": CONTENDERS[name]} for name in strategies]
    done: dict[str, int] = {}

    def progress(label: str, outcome: Any) -> None:
        done[label] = done.get(label, 0) + 1
        note(f"{title}{label}: {done[label]} of {len(task.problems)}, {outcome.verdict}")

    return compare(task, contenders=contenders, engine=engine, concurrency=20, on_outcome=progress)


def note(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def main(
    quick: Quick = False,
    rows: Annotated[Path | None, typer.Option(help="JSON lines with question and answer, as GSM8K")] = None,
    model: Annotated[str | None, typer.Option(help="folder of a model; default: the embedded one")] = None,
    limit: Annotated[int, typer.Option(help="most rows")] = 40,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16")] = "float32",
    strategy: Annotated[list[str] | None, typer.Option(help="only this strategy; repeatable")] = None,
    without: Annotated[bool, typer.Option(help="also measure without closing")] = True,
) -> Report:
    """Count lines, run the eight tasks, and compare the strategies on rows."""
    task = own_rows(rows, 2 if quick else limit)
    chosen = ["cot", "beam"] if quick and not strategy else strategy or list(CONTENDERS)
    with load_engine() as embedded:
        embedded.tokenizer.chat_template = TEMPLATE
        ran = run_all(embedded)
    with load_engine(model, dtype=dtype) as engine:
        found = measure(task, engine, chosen, "")
        task.closing = None
        bare = measure(task, engine, chosen, "without closing, ") if without else []
        environment = {"model": engine.name, "dtype": dtype, "device": str(engine.numerics["device"])}
    greedy = next((row.solved for row in found if row.strategy == "cot"), None)
    below = [row.strategy for row in found if greedy is not None and row.solved < greedy]
    figures = lines() | {
        "ran": ran,
        "n": len(task.problems),
        "answered": {row.strategy: answered(row) for row in found},
        "answered_without_closing": {row.strategy: answered(row) for row in bare},
        "solved": {row.strategy: row.solved for row in found},
        "tokens": {row.strategy: row.tokens for row in found},
        "seconds": {row.strategy: round(row.seconds, 1) for row in found},
        "at_least_greedy": not below,
        "below_greedy": ", ".join(below),
    }
    for row in found:
        figures[f"solved.{row.strategy}.low"] = round(row.low * row.n, 2)
        figures[f"solved.{row.strategy}.high"] = round(row.high * row.n, 2)
    return Report(figures, environment)


def answered(row: Row) -> float:
    """The share of searches that ended with an answer."""
    return 1 - (row.unanswered + len(row.failures)) / row.n
