"""The ``rksc-tot`` command: ``solve``, ``run``, ``compare``, and what is installed.

Everything heavy is imported inside the command that needs it, so that ``--help`` and errors come at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rksc_tot.cli.commands.calibrate import calibrate
from rksc_tot.cli.commands.fit import fit
from rksc_tot.cli.commands.run import run
from rksc_tot.cli.engine import open_engine
from rksc_tot.cli.exits import NOT_SOLVED, Interrupt, one_sentence
from rksc_tot.cli.options.arguments import QUOTES, AsJson, Debug, ProblemCommand, Seed, importable_here
from rksc_tot.cli.options.engine import EngineOptions
from rksc_tot.cli.options.groups import grouped
from rksc_tot.cli.options.search import LimitOptions, SearchOptions

if TYPE_CHECKING:
    from rksc_tot.evaluation import Row

app = typer.Typer(
    help="Tree-of-thoughts search on one shared KV cache.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command(cls=ProblemCommand)(calibrate)
app.add_typer(fit, name="fit")
app.command()(run)


@app.command(cls=ProblemCommand)
@grouped
def solve(
    task: Annotated[
        str, typer.Argument(help="Such as game24 (see `rksc-tot tasks`), or your own as module:attribute.")
    ],
    problem: Annotated[str, typer.Argument(help='A text, such as "4 5 6 10".')],
    search: SearchOptions,
    limits: LimitOptions,
    engine: EngineOptions,
    live: Annotated[bool, typer.Option(help="Redraw the tree while it grows; else it is shown at the end.")] = True,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Search one problem; show the tree, the path, the answer and the ledger.

    Exit code 0: an answer that is not known to be wrong; 3: no such answer; 1: an error; 2: wrong usage; 130: interrupted
    (143: by SIGTERM).
    """
    with one_sentence(debug):
        from rksc_tot.api.result import Result
        from rksc_tot.api.solve import solve as run_search
        from rksc_tot.cli.output import loading, watched, write_result
        from rksc_tot.search.task_calls import validated
        from rksc_tot.tasks import load_task

        importable_here(task)
        chosen = load_task(task)
        validated(chosen, problem)  # as all that follows: before a model is loaded
        options = search.asked_of(chosen, limits.budget())
        how = engine.opened_for(chosen)
        with loading(not as_json):
            opened = open_engine(*how)
        try:
            with Interrupt() as interrupt, watched(problem, interrupt, live, as_json) as view:
                result = run_search(chosen, problem, engine=opened, on_event=view.update, **options)
                view.settle(result.best)
        except Exception as error:
            if isinstance(kept := getattr(error, "result", None), Result):
                write_result(kept, as_json)
            raise
        finally:
            opened.close()
        write_result(result, as_json)
        if interrupt.number is not None:
            raise typer.Exit(128 + interrupt.number)
        if result.answer is None or result.correct is False:
            raise typer.Exit(NOT_SOLVED)


@app.command(cls=ProblemCommand)
@grouped
def compare(
    task: Annotated[str, typer.Argument(help="Such as game24, or your own as module:attribute.")],
    engine: EngineOptions,
    limits: LimitOptions,
    problems: Annotated[list[str] | None, typer.Argument(help="Problems, one an argument.")] = None,
    puzzles: Annotated[Path | None, typer.Option(help="A csv with columns Rank and Puzzles.")] = None,
    rows: Annotated[str | None, typer.Option(help="Which ranks of that file, such as 901-1000.")] = None,
    held_out: Annotated[bool, typer.Option("--held-out", help="Puzzles the embedded model never saw.")] = False,
    held_out_states: Annotated[
        bool, typer.Option("--held-out-states", help="Puzzles of which it never saw a good three-number state either.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Play these rows only, by the label --list shows. Repeatable.")
    ] = None,
    list_rows: Annotated[bool, typer.Option("--list", help="List the rows by label, and play none.")] = False,
    seed: Seed = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Searches in flight; only seconds change.")] = 8,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Let several strategies solve the same problems; show who solves how many, for how many tokens.

    A problem is solved if the first answer of the search passes the task's exact check. Intervals are Wilson's, 95 %.
    """
    with one_sentence(debug):
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
        budget = limits.budget()
        how = engine.opened_for(named)
        finished: list[Row] = []
        try:
            with progress(len(contenders) * len(chosen), not as_json) as on_result:
                comparison = Comparison(chosen, lambda: open_engine(*how), seed, budget, concurrency, on_result)
                for contender in contenders:
                    finished.append(comparison.run(contender, finished))
        finally:  # whatever ends it, the rows that are done are shown
            if finished:
                write_rows(finished, as_json, task=task, seed=seed, problems=chosen)
        _raise_if_nothing_ran(finished)


@app.command()
def tasks(debug: Debug = False) -> None:
    """List the tasks, each with the settings it usually gives a strategy."""
    with one_sentence(debug):
        from rksc_tot.cli.output import write_list
        from rksc_tot.tasks import TASKS

        write_list(TASKS)


@app.command()
def strategies(debug: Debug = False) -> None:
    """List the strategies, each with the settings that --set changes."""
    with one_sentence(debug):
        from rksc_tot.cli.output import write_list
        from rksc_tot.strategies import STRATEGIES

        write_list(STRATEGIES)


@app.command()
def verifiers(debug: Debug = False) -> None:
    """List the verifiers, each with its settings."""
    with one_sentence(debug):
        from rksc_tot.cli.output import write_list
        from rksc_tot.verifiers import VERIFIERS

        write_list(VERIFIERS)


@app.command()
def policies(debug: Debug = False) -> None:
    """List the policies that --compress takes, each with its settings."""
    with one_sentence(debug):
        from rksc_tot.cli.output import write_list
        from rksc_tot.policies.compression.base import KEEP

        write_list(KEEP)


def _raise_if_nothing_ran(rows: list[Row]) -> None:
    from rksc_tot.core.errors import RkscTotError

    failures = [failure for row in rows for failure in row.failures]
    if failures and len(failures) == sum(row.n for row in rows):
        torn = len({failure.problem for failure in failures}) > 1 and not any(" " in f.problem for f in failures)
        raise RkscTotError(
            f"every search failed, such as {failures[0].problem!r}: {failures[0].error}", hint=QUOTES if torn else ""
        )
