"""The command ``rksc-tot compare``: several strategies on the same problems, as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rksc_tot.cli.exits import one_sentence
from rksc_tot.cli.options.arguments import QUOTES, AsJson, Debug, Seed, importable_here
from rksc_tot.cli.options.engine import EngineOptions
from rksc_tot.cli.options.groups import grouped
from rksc_tot.cli.options.search import LimitOptions, SamplingOptions

if TYPE_CHECKING:
    from rksc_tot.evaluation import Row


@grouped
def compare(
    task: Annotated[str, typer.Argument(help="A name from `rksc-tot tasks`, or your own as module:attribute.")],
    engine: EngineOptions,
    limits: LimitOptions,
    sampling_options: SamplingOptions,
    problems: Annotated[list[str] | None, typer.Argument(help="Problems, one per argument.")] = None,
    puzzles: Annotated[Path | None, typer.Option(help="A csv file of problems, with columns Rank and Puzzles.")] = None,
    rows: Annotated[str | None, typer.Option(help="Only these ranks of that file, such as 901-1000.")] = None,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Game-of-24 puzzles that the embedded model was not trained on.")
    ] = False,
    held_out_states: Annotated[
        bool,
        typer.Option(
            "--held-out-states",
            help="Held-out puzzles of which no solvable state was in the training data either.",
        ),
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Run this row only, by its label in --list. May be given several times.")
    ] = None,
    list_rows: Annotated[bool, typer.Option("--list", help="List the labels of all rows and run none.")] = False,
    seed: Seed = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Searches at the same time: affects the run time only.")] = 8,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run several strategies on the same problems; show how many each solves, and for how many tokens.

    A problem is solved if the answer passes the task's own check. Intervals are 95 % Wilson intervals.
    """
    with one_sentence(debug):
        from rksc_tot.cli.engine import open_engine
        from rksc_tot.cli.output import progress, write_rows
        from rksc_tot.evaluation import Comparison
        from rksc_tot.evaluation.contenders import choose_contenders
        from rksc_tot.evaluation.problems import choose_problems
        from rksc_tot.tasks import load_task

        importable_here(task)
        named = load_task(task)
        contenders = choose_contenders(task, only or [])
        if list_rows:
            print(*(contender.label for contender in contenders), sep="\n")
            return
        chosen = choose_problems(problems or [], puzzles, rows, held_out, held_out_states)
        budget, sampling = limits.budget(), sampling_options.sampling()
        engine_arguments = engine.arguments_for(named)
        finished: list[Row] = []
        try:
            with progress(len(contenders) * len(chosen), not as_json) as on_result:
                comparison = Comparison(
                    chosen, lambda: open_engine(*engine_arguments), seed, budget, concurrency, on_result, sampling
                )
                for contender in contenders:
                    finished.append(comparison.run(contender, finished))
        finally:  # also after an error
            if finished:
                write_rows(finished, as_json, task=task, seed=seed, problems=chosen)
        _raise_if_nothing_ran(finished)


def _raise_if_nothing_ran(rows: list[Row]) -> None:
    from rksc_tot.core.errors import RkscTotError

    failures = [failure for row in rows for failure in row.failures]
    if failures and len(failures) == sum(row.n for row in rows):
        unquoted = len({failure.problem for failure in failures}) > 1 and not any(" " in f.problem for f in failures)
        raise RkscTotError(
            f"every search failed, for example {failures[0].problem!r}: {failures[0].error}",
            hint=QUOTES if unquoted else "",
        )
