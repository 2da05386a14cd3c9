"""The command ``rksc-tot check``: call every part of a task once, show what the model writes, and say what to change."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rksc_tot.cli.exits import NOT_SOLVED, one_sentence
from rksc_tot.cli.options.arguments import AsJson, Debug, TaskName, problem_of
from rksc_tot.cli.options.engine import EngineOptions
from rksc_tot.cli.options.groups import grouped
from rksc_tot.cli.options.rows import RowsOptions
from rksc_tot.core.errors import ConfigError


@grouped
def check(
    task: TaskName,
    rows: RowsOptions,
    engine: EngineOptions,
    problem: Annotated[
        str | None, typer.Argument(help="A problem of the task. Default: the first row of rows:FILE.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Call every part of a task once; show sampled thoughts of the model, and say what is missing or wrong.

    Exit codes: 0 the task has no error; 3 it has one; 1 an error of the command; 2 wrong usage.
    """
    with one_sentence(debug):
        from rich.console import Console

        from rksc_tot.api.check.check_task import check_task
        from rksc_tot.cli.engine import open_engine
        from rksc_tot.cli.output import loading, strict_json, write_model
        from rksc_tot.tasks.rows.task import RowsTask
        from rksc_tot.views.terminal.findings import findings_report

        chosen = rows.load(task)
        given: Any
        if problem is not None:
            given = problem_of(problem)
        elif isinstance(chosen, RowsTask):
            given = chosen.problems[0].problem
        else:
            raise ConfigError("there is no problem to check the task on", hint="name one after the task")
        engine_arguments = engine.arguments_for(chosen)
        with loading(not as_json):
            opened = open_engine(*engine_arguments)
        if not as_json:
            write_model(opened)
        try:
            found = check_task(chosen, given, opened)
        finally:
            opened.close()
        if as_json:
            print(strict_json([vars(finding) for finding in found]))
        else:
            Console().print(findings_report(found))
        if any(finding.level == "error" for finding in found):
            raise typer.Exit(NOT_SOLVED)
