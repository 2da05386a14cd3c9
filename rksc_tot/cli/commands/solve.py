"""The command ``rksc-tot solve``: one problem, its tree, path, answer and ledger."""

from __future__ import annotations

from typing import Annotated

import typer

from rksc_tot.cli.exits import NOT_SOLVED, Interrupt, one_sentence
from rksc_tot.cli.options.arguments import AsJson, Debug, importable_here
from rksc_tot.cli.options.engine import EngineOptions
from rksc_tot.cli.options.groups import grouped
from rksc_tot.cli.options.search import LimitOptions, SearchOptions


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
        from rksc_tot.cli.engine import open_engine
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
