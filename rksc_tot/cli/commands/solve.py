"""The command ``rksc-tot solve``: one problem, its tree, path, answer and ledger."""

from __future__ import annotations

from typing import Annotated

import typer

from rksc_tot.cli.exits import ENDED, NOT_SOLVED, Interrupt, Signalled, one_sentence
from rksc_tot.cli.options.arguments import AsJson, Debug, TaskName, problem_of
from rksc_tot.cli.options.engine import EngineOptions
from rksc_tot.cli.options.groups import grouped
from rksc_tot.cli.options.rows import RowsOptions
from rksc_tot.cli.options.search import LimitOptions, SearchOptions


@grouped
def solve(
    task: TaskName,
    problem: Annotated[str, typer.Argument(help='A problem of the task, such as "4 5 6 10", or as JSON.')],
    rows: RowsOptions,
    search: SearchOptions,
    limits: LimitOptions,
    engine: EngineOptions,
    live: Annotated[bool, typer.Option(help="Redraw the tree while it grows, or show it once at the end.")] = True,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Search one problem; show the tree, the path, the answer and what they cost.

    Exit codes: 0 the answer is right or was not checked; 3 there is no answer, or a wrong one; 1 an error; 2 wrong usage;
    130 interrupted; 143 terminated.
    """
    with one_sentence(debug):
        from rksc_tot.api.result import Result
        from rksc_tot.api.solve import asolve
        from rksc_tot.cli.engine import open_engine, share_budget
        from rksc_tot.cli.output import live_tree, loading, write_model, write_reader, write_result
        from rksc_tot.search.task_calls import validated

        chosen = search.adapted(rows.load(task))
        given = problem_of(problem)
        validated(chosen, given)  # before the model is loaded
        options = search.keywords_for(chosen, limits.budget())
        options["verifier"], engine_arguments = share_budget(options["verifier"], engine.arguments_for(chosen))
        with loading(not as_json):
            opened = open_engine(*engine_arguments)
            reader = opened if options["verifier"] is None else options["verifier"].reader(opened)
        if not as_json:
            write_model(opened)
            write_reader(opened, reader)
        failure: BaseException | None = None
        try:
            with Interrupt() as interrupt, live_tree(problem, live, as_json) as view:
                try:
                    result = interrupt.run(asolve(chosen, given, engine=opened, on_event=view.update, **options))
                except (Exception, Signalled) as error:
                    failure, best_so_far = error, getattr(error, "result", None)
                    if not isinstance(best_so_far, Result):
                        raise
                    result = best_so_far
                view.set_best(result.best)
        finally:
            opened.close()
        if isinstance(failure, Signalled):
            result.stopped = ENDED[failure.number]
        write_result(result, as_json)
        if failure is not None:
            raise failure
        if result.answer is None or result.correct is False:
            raise typer.Exit(NOT_SOLVED)
