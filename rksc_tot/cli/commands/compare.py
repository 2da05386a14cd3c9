"""The command ``rksc-tot compare``: several strategies on the same problems, as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rksc_tot.cli.exits import one_sentence
from rksc_tot.cli.options.arguments import (
    QUOTES,
    AsJson,
    Debug,
    Seed,
    TaskName,
    importable_here,
    problem_of,
)
from rksc_tot.cli.options.engine import EngineOptions
from rksc_tot.cli.options.groups import grouped
from rksc_tot.cli.options.rows import ROWS, RowsOptions
from rksc_tot.cli.options.search import LimitOptions, SamplingOptions
from rksc_tot.cli.options.thoughts import ThoughtOptions
from rksc_tot.core.errors import ConfigError, RkscTotError
from rksc_tot.core.plugins.one_line import settings_of, split
from rksc_tot.core.task import Problem

if TYPE_CHECKING:
    from rksc_tot.api.outcomes import Outcome
    from rksc_tot.core.task import Task
    from rksc_tot.evaluation import Row
    from rksc_tot.evaluation.contenders import Contender


@grouped
def compare(
    task: TaskName,
    rows_options: RowsOptions,
    thoughts: ThoughtOptions,
    engine: EngineOptions,
    limits: LimitOptions,
    sampling_options: SamplingOptions,
    problems: Annotated[list[str] | None, typer.Argument(help="Problems, one per argument.")] = None,
    file: Annotated[
        str | None,
        typer.Option("--problems", help="A file of problems as for `rksc-tot run`. Default: the rows of rows:FILE."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first problems, at most this many.")] = None,
    contender: Annotated[
        list[str] | None,
        typer.Option(
            help="A row of your own: a strategy with settings, such as beam:b=4, or a JSON object with strategy and, if needed, "
            "label, settings, verifier, sampling and budget. May be given several times."
        ),
    ] = None,
    puzzles: Annotated[Path | None, typer.Option(help="A csv file of problems, with columns Rank and Puzzles.")] = None,
    rows: Annotated[str | None, typer.Option(help="Only these ranks of that file, such as 901-1000.")] = None,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="The problems of the task that its embedded model was not trained on.")
    ] = False,
    held_out_states: Annotated[
        bool,
        typer.Option(
            "--held-out-states",
            help="Game-of-24 puzzles of which no solvable state was in the training data either.",
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
        from rksc_tot.evaluation.compare import problems_for, refuse_same_labels
        from rksc_tot.evaluation.contenders import choose_contenders

        named = thoughts.adapted(rows_options.load(task))
        contenders = [own_contender(each) for each in contender or []] or choose_contenders(
            "" if task.startswith(ROWS) else task, only or []
        )
        refuse_same_labels(contenders)
        if list_rows:
            print(*(each.label for each in contenders), sep="\n")
            return
        given = _given(named, problems or [], file, puzzles, rows, held_out, held_out_states)
        chosen = problems_for(named, given, limit)
        budget, sampling = limits.budget(), sampling_options.sampling()
        engine_arguments = engine.arguments_for(named)
        finished: list[Row] = []
        solved: dict[str, list[bool]] = {}

        def show(label: str, outcome: Outcome) -> None:
            solved.setdefault(label, []).append(outcome.verdict == "right")
            on_result(f"{label}: {sum(solved[label])} of {len(solved[label])} solved")

        try:
            with progress(len(contenders) * len(chosen), not as_json) as on_result:
                comparison = Comparison(
                    chosen, lambda: open_engine(*engine_arguments), seed, budget, concurrency, show, sampling, named
                )
                for each in contenders:
                    finished.append(comparison.run(each, finished))
        finally:  # also after an error
            if finished:
                shown = [_shown(problem) for problem in chosen]
                write_rows(finished, as_json, task=task, seed=seed, problems=shown, **thoughts.describe(named))
        _raise_if_nothing_ran(finished)


def own_contender(text: str) -> Contender:
    """The contender of an option: a JSON object, or a strategy with settings. Raises ConfigError if it is invalid."""
    from rksc_tot.evaluation.contenders import contender_of
    from rksc_tot.strategies import STRATEGIES

    record = problem_of(text)
    if isinstance(record, dict):
        importable_here(str(record.get("strategy")), str(record.get("verifier")))
        return contender_of(record)
    name, pairs = split(STRATEGIES, "--contender", text, "beam:b=4")
    importable_here(name)
    return contender_of({"label": text, "strategy": name, "settings": settings_of(pairs, "--contender")})


def _given(
    task: Task,
    problems: list[str],
    file: str | None,
    puzzles: Path | None,
    rows: str | None,
    held_out: bool,
    held_out_states: bool,
) -> list[Any]:
    """The problems of the options; none for a task of rows without such options. Raises ConfigError for two sources."""
    from rksc_tot.api.jsonl_reader import read_problems
    from rksc_tot.evaluation.problems import choose_problems
    from rksc_tot.tasks.rows.task import RowsTask

    others = [bool(problems), puzzles is not None, held_out, held_out_states]
    if file is not None:
        if any(others):
            raise ConfigError("--problems is given with other problems", hint="give one of them")
        return [line.problem for line in read_problems(file)]
    if isinstance(task, RowsTask) and not any(others):
        return []
    return [problem_of(each) for each in choose_problems(problems, puzzles, rows, held_out, held_out_states, task)]


def _shown(problem: Any) -> Any:
    """A problem for the JSON output."""
    return {"id": problem.id, "problem": problem.problem} if isinstance(problem, Problem) else problem


def _raise_if_nothing_ran(rows: list[Row]) -> None:
    failures = [failure for row in rows for failure in row.failures]
    if failures and len(failures) == sum(row.n for row in rows):
        unquoted = len({failure.problem for failure in failures}) > 1 and not any(" " in f.problem for f in failures)
        raise RkscTotError(
            f"every search failed, for example {failures[0].problem!r}: {failures[0].error}",
            hint=QUOTES if unquoted else "",
        )
