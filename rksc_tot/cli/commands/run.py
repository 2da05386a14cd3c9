"""The command ``rksc-tot run``: many searches at once, with one line of results each."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rksc_tot.cli.exits import ENDED, NOT_SOLVED, Interrupt, Signalled, one_sentence
from rksc_tot.cli.options.arguments import AsJson, Debug, TaskName
from rksc_tot.cli.options.engine import EngineOptions
from rksc_tot.cli.options.groups import grouped
from rksc_tot.cli.options.rows import RowsOptions
from rksc_tot.cli.options.search import LimitOptions, RunLimitOptions, SearchOptions
from rksc_tot.core.errors import ConfigError, RkscTotError
from rksc_tot.core.version import __version__

if TYPE_CHECKING:
    from rksc_tot.api.jsonl_reader import ProblemLine
    from rksc_tot.api.outcomes import RunProgress, Tally
    from rksc_tot.api.solve_many import AsyncOutcomes
    from rksc_tot.cli.results_writer import ResultsWriter
    from rksc_tot.core.task import Task


@grouped
def run(
    task: TaskName,
    out: Annotated[Path, typer.Option(help="The results file: one JSON object a line.")],
    rows: RowsOptions,
    search: SearchOptions,
    limits: LimitOptions,
    run_limits: RunLimitOptions,
    engine: EngineOptions,
    problems: Annotated[
        str | None,
        typer.Argument(
            help='A file with one JSON value a line, "4 5 6 10" or {"problem": …, "id": …}; - is stdin. '
            "Default: the rows of rows:FILE."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    concurrency: Annotated[
        int,
        typer.Option(
            min=1,
            help="Searches at the same time. Results do not depend on it, unless --max-kv or a limit in seconds is set.",
        ),
    ] = 8,
    trees: Annotated[bool, typer.Option("--trees", help="Write the trees as well.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Search all problems of a file, many at a time; write a line of results as each search ends.

    Each problem is searched as `rksc-tot solve` would, with the same seed.

    With --resume, problems that are done in --out are skipped; those that failed or that a limit of the run cut off are
    searched again. All settings that results depend on must be the same as before. Of the task, the model and the calibration
    file only the names are compared. Limits of all searches together start anew.

    Exit codes: 0 all problems were searched; 3 a limit of the run left some out; 1 every search failed, or an error ended the
    run; 2 wrong usage; 130 interrupted; 143 terminated.
    """
    with one_sentence(debug):
        from rksc_tot.api.outcomes import RunProgress, Tally, has_check
        from rksc_tot.api.setup import default_verifier, sampling_for, verifier_of
        from rksc_tot.api.solve_many import asolve_many
        from rksc_tot.cli.engine import open_engine, share_budget
        from rksc_tot.cli.output import loading
        from rksc_tot.cli.results_writer import ResultsWriter
        from rksc_tot.search.task_calls import validated
        from rksc_tot.tasks.rows.task import RowsTask

        chosen = search.adapted(rows.load(task))
        options: dict[str, Any] = {
            **search.keywords_for(chosen, limits.budget()),
            "concurrency": concurrency,
            "run_budget": run_limits.budget(),
        }
        options["verifier"], engine_arguments = share_budget(options["verifier"], engine.arguments_for(chosen))
        lines = _lines(chosen, problems)
        rksc = options["rksc"]
        verifier = options["verifier"]
        common = {
            "rksc_tot": __version__,
            "task": task,
            "strategy": options["strategy"].describe() | {"name": search.strategy},
            "verifier": verifier and verifier.describe(),
            "sampling": sampling_for(chosen, options["sampling"]).model_dump(),
            **search.describe(chosen),
            "budget": options["budget"].model_dump(exclude_none=True),
            "seed": search.seed,
            "rksc": rksc and {"calibration": search.calibration, "sibling": search.sibling, "audit": rksc.audit},
            **engine.describe(engine_arguments),
            "trees": trees,
        }
        if isinstance(chosen, RowsTask):
            common["rows"] = chosen.describe()

        def settings_for(problem: Any) -> dict[str, Any]:
            """All settings that a result depends on. A problem that the task refuses has no default verifier."""
            if verifier is None:
                with suppress(RkscTotError):
                    usual = default_verifier(chosen, validated(chosen, problem))
                    return {**common, "verifier": verifier_of(usual).describe()}
            return common

        with ResultsWriter(out, settings_for, trees) as results:
            with _resume_hint():
                if not resume:
                    results.check_new()
                earlier = RunProgress(has_check(chosen))
                done = results.resume(lines, earlier) if resume else set()
                todo = [line for line in lines if str(line.fields["id"]) not in done]
                if not todo:
                    _report(Tally(earlier.checks, total=0, stopped="finished"), earlier, 0.0, as_json)
                    return
                with loading(not as_json):
                    opened = open_engine(*engine_arguments)
                    if verifier is not None:
                        verifier.reader(opened)
            try:
                searches = asolve_many(chosen, [line.problem for line in todo], engine=opened, **options)
                _write_all(searches, results, todo, opened, earlier, as_json)
            finally:
                opened.close()


def _lines(task: Task, file: str | None) -> list[ProblemLine]:
    """The problems of a file, or the rows of a task of rows. Raises ConfigError if there are none."""
    from rksc_tot.api.jsonl_reader import ProblemLine, read_problems
    from rksc_tot.tasks.rows.task import RowsTask

    if file is not None:
        return read_problems(file)
    if not isinstance(task, RowsTask):
        raise ConfigError("there are no problems to search", hint="name a file of problems after the task")
    return [
        ProblemLine(number, {"problem": each.problem, "id": each.id}) for number, each in enumerate(task.problems, 1)
    ]


def _write_all(
    searches: AsyncOutcomes,
    results: ResultsWriter,
    todo: Sequence[ProblemLine],
    engine: Any,
    earlier: RunProgress,
    as_json: bool,
) -> None:
    """Run the searches, write each outcome, and report."""
    from rich.console import Console

    from rksc_tot.views.terminal.run_progress import run_progress

    tally, start, failures = searches.tally, time.perf_counter(), list[str]()
    by_id = {line.fields["id"]: line for line in todo}

    async def write_all() -> None:
        async for outcome in searches:
            shown()
            written = results.write(outcome, by_id[outcome.id])
            if written is not outcome:
                tally.verdicts[outcome.verdict] -= 1
                tally.count(written.verdict, "", written.reason)
                outcome = written
            if outcome.failure is not None and not failures:
                failures.append(f"problem {outcome.id}: {outcome.failure}")

    try:
        with Interrupt() as interrupt, run_progress(tally, engine, Console(stderr=True), not as_json) as shown:
            interrupt.run(write_all())
    except Signalled as error:
        tally.stopped = ENDED[error.number]
    finally:
        _report(tally, earlier, time.perf_counter() - start, as_json)
    if interrupt.number is not None and tally.stopped != "finished":
        raise Signalled(interrupt.number)
    if tally.failed + tally.refused == tally.finished > 0 == earlier.done:
        raise RkscTotError(f"every search failed, for example {failures[0]}")
    if tally.stopped != "finished":
        raise typer.Exit(NOT_SOLVED)


def _report(tally: Tally, earlier: RunProgress, seconds: float, as_json: bool) -> None:
    """Write the totals of a run to stdout and, if it did not finish, the command that resumes it to stderr."""
    from rich.console import Console

    from rksc_tot.api.outcomes import SEARCHED
    from rksc_tot.api.result import ADVICE
    from rksc_tot.cli.output import strict_json
    from rksc_tot.views.terminal.run_progress import record_of_run, run_summary

    record = record_of_run(tally, earlier, seconds)
    if as_json:
        print(strict_json(record))
    else:
        Console().print(run_summary(record))
    if record["unanswered"] and not record["solved"]:
        sys.stderr.write(f"what to do about problems without an answer: {ADVICE}\n")
    if tally.stopped == "finished":
        return
    if tally.cut and not any(tally.verdicts[ended] for ended in SEARCHED):  # the resumed run would get no further
        sys.stderr.write("no search finished within the run's budget; raise it or lower --concurrency\n")
    sys.stderr.write(f"resume with: {_resume_command(sys.argv)}\n")


@contextmanager
def _resume_hint() -> Iterator[None]:
    """If Ctrl-C ends the block, write the command that resumes the run to stderr."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write(f"resume with: {_resume_command(sys.argv)}\n")
        raise


def _resume_command(arguments: Sequence[str]) -> str:
    """The command that resumes a run."""
    given = list(arguments[1:])
    at = given.index("run") + 1 if "run" in given else 0
    return shlex.join(["rksc-tot", *given[:at], *([] if "--resume" in given else ["--resume"]), *given[at:]])
