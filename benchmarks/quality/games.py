"""Solved game-of-24 puzzles and their token cost, for every strategy of ``rksc-tot compare`` on the embedded model.

``python -m benchmarks games [--puzzles FILE --rows 901-1000 | --states] [--json] [--quick]``. Without a file: the hundred
held-out roots. ``--states``: fifty puzzles whose three-number states do not occur in training. A puzzle is solved if the *first*
answer makes 24 from exactly the given numbers, checked in rational arithmetic.

Figures of each strategy:

* ``solved``: solved puzzles of ``n``; ``low``, ``high``: 95 % Wilson interval of the share
* ``tokens``: sampled tokens of all branches
* ``prefill_tokens``: tokens computed and stored
* ``distinct_tokens``: distinct tokens; equals ``prefill_tokens`` if no token was computed twice
* ``prefill_saved``: share of context rows that were not computed
* ``verifier_tokens``: tokens of questions
* ``nodes``: nodes of all trees
* ``seconds``: time for all puzzles, eight at a time
* ``failures``: searches that failed
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.common.report import Quick, Report
from rksc_tot import load_engine
from rksc_tot.evaluation import Comparison, Row
from rksc_tot.evaluation.contenders import choose_contenders
from rksc_tot.evaluation.problems import choose_problems


def figures(row: Row) -> dict[str, Any]:
    """The numbers of a row."""
    return row.model_dump(exclude={"strategy", "settings", "failures"}) | {"failures": len(row.failures)}


def main(
    quick: Quick = False,
    puzzles: Annotated[Path | None, typer.Option(help="csv of puzzles to solve")] = None,
    rows: Annotated[str | None, typer.Option(help="ranks of puzzles in that file")] = None,
    states: Annotated[bool, typer.Option("--states", help="puzzles with held-out three-number states")] = False,
) -> Report:
    """Run every strategy on the same puzzles."""
    problems = choose_problems(file=puzzles, rows=rows, held_out=not (puzzles or states), held_out_states=states)
    comparison = Comparison(problems[:3] if quick else problems, load_engine)
    found: list[Row] = []
    for contender in choose_contenders("game24"):
        found.append(comparison.run(contender, found))
    return Report({row.strategy: figures(row) for row in found})
