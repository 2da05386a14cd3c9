"""The command ``rksc-tot fit``: fits a compression policy or a probe to a model and a task, and writes it to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rksc_tot.cli.exits import one_sentence
from rksc_tot.cli.options.arguments import AsJson, Debug, ProblemCommand, importable_here
from rksc_tot.cli.options.engine import ModelOptions
from rksc_tot.cli.options.groups import grouped
from rksc_tot.cli.options.search import ProblemOptions, StrategyOptions
from rksc_tot.cli.output import check_writable

fit = typer.Typer(help="Fit a compression policy or a probe to a model and a task.", no_args_is_help=True)


@fit.callback()
def _policies() -> None:
    """Fit a compression policy or a probe to a model and a task."""


@fit.command(cls=ProblemCommand)
@grouped
def arborkv(
    task: Annotated[str, typer.Argument(help="A name from `rksc-tot tasks`, or your own as module:attribute.")],
    source: ProblemOptions,
    search: StrategyOptions,
    model: ModelOptions,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("arborkv.json"),
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Fit the weights of ArborKV: drop the KV of one thought at a time, and see which thoughts the answers need.

    The file is for `rksc-tot solve --compress arborkv:fit=FILE`. All KV of a search must fit into --kv-budget.

    Exit codes: 0 the weights were found; 1 an error; 2 wrong usage, or too little to learn from.
    """
    with one_sentence(debug):
        from rich.console import Console

        from rksc_tot.cli.engine import open_engine
        from rksc_tot.cli.output import progress, strict_json
        from rksc_tot.evaluation.arborkv.fit import MEASURING, fit_arborkv
        from rksc_tot.tasks import load_task
        from rksc_tot.views.terminal.fits.arborkv_fit import fit_report

        importable_here(task)
        chosen = load_task(task)
        check_writable(out)
        strategy, problems = search.strategy_for(chosen), source.load(search.seed)
        engine = open_engine(*model.arguments(chosen, compress=MEASURING))
        try:
            with progress(len(problems), not as_json) as on_problem:
                found = fit_arborkv(
                    chosen, problems, engine=engine, strategy=strategy, seed=search.seed, on_problem=on_problem
                )
        finally:
            engine.close()
        try:
            found.fit.save(out)
        finally:  # also if the file cannot be written
            if as_json:
                features = [feature._asdict() for feature in found.features]
                print(
                    strict_json(
                        {"fit": found.fit.model_dump(mode="json"), "interval": found.interval, "features": features}
                    )
                )
            else:
                Console().print(fit_report(found))
        if not as_json:
            Console().print(f"written to {out}", markup=False)


@fit.command(cls=ProblemCommand)
@grouped
def probe(
    task: Annotated[str, typer.Argument(help="A name from `rksc-tot tasks`, or your own as module:attribute.")],
    source: ProblemOptions,
    model: ModelOptions,
    labels: Annotated[
        Literal["rollouts", "checker"],
        typer.Option(
            help="Label thoughts by the share of right answers below them, by the task's check; or by the task's exact solver."
        ),
    ] = "rollouts",
    k: Annotated[int, typer.Option(min=1, help="Thoughts below a node.")] = 16,
    width: Annotated[int, typer.Option(min=1, help="Nodes of a level that get thoughts.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random choice.")] = 0,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("probe.json"),
    concurrency: Annotated[int, typer.Option(min=1, help="Problems at the same time.")] = 8,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Fit a probe: a linear head on hidden states that says whether a thought leads to a right answer.

    The file is for `rksc-tot solve --verifier probe:file=FILE`. The layer is chosen on a quarter of the problems.

    Exit codes: 0 the probe was fitted; 1 an error; 2 wrong usage, or too little to learn from.
    """
    with one_sentence(debug):
        from rich.console import Console

        from rksc_tot.cli.engine import open_engine
        from rksc_tot.cli.output import progress
        from rksc_tot.evaluation.probe.fit import fit_probe
        from rksc_tot.tasks import load_task
        from rksc_tot.views.terminal.fits.probe import probe_report

        importable_here(task)
        chosen = load_task(task)
        check_writable(out)
        problems = source.load(seed)
        engine = open_engine(*model.arguments())
        try:
            with progress(len(problems), not as_json) as on_problem:
                found = fit_probe(
                    chosen, problems, engine=engine, labels=labels, k=k, width=width, seed=seed,
                    concurrency=concurrency, on_problem=on_problem,
                )  # fmt: skip
        finally:
            engine.close()
        if as_json:
            print(found.model_dump_json())
        else:
            Console().print(probe_report(found))
        found.save(out)
        if not as_json:
            Console().print(f"written to {out}", markup=False)
