"""The command ``rksc-tot calibrate``: writes the rules for early decisions of a model on a task to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rksc_tot.cli.exits import NOT_SOLVED, one_sentence
from rksc_tot.cli.options.arguments import AsJson, Debug, importable_here
from rksc_tot.cli.options.engine import ModelOptions
from rksc_tot.cli.options.groups import grouped
from rksc_tot.cli.options.plugins import FORM, plug_in
from rksc_tot.cli.options.search import ProblemOptions, StrategyOptions
from rksc_tot.cli.output import check_writable


@grouped
def calibrate(
    task: Annotated[
        str,
        typer.Argument(
            help="A name from `rksc-tot tasks`, or your own as module:attribute. lm_value needs its question."
        ),
    ],
    source: ProblemOptions,
    search: StrategyOptions,
    model: ModelOptions,
    verifier: Annotated[
        str | None,
        typer.Option(metavar=FORM, help="A verifier with labels, such as prm:FOLDER. Default: lm_value."),
    ] = None,
    delta: Annotated[
        float, typer.Option(help="Largest share of early decisions that may differ from full ones.")
    ] = 0.01,
    alpha: Annotated[float, typer.Option(help="Largest probability that more of them differ.")] = 0.05,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("calibration.json"),
    concurrency: Annotated[int, typer.Option(min=1, help="Searches at the same time.")] = 8,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Find thresholds at which the verifier may exit early; show what they save, and write them to a file.

    The file is for `rksc-tot solve --calibration FILE`. A mechanism without a threshold that passes the test stays off.

    Exit codes: 0 a threshold passed; 3 none did; 1 an error; 2 wrong usage.
    """
    with one_sentence(debug):
        from rich.console import Console

        from rksc_tot.cli.engine import open_engine, share_budget
        from rksc_tot.cli.output import progress
        from rksc_tot.evaluation.calibration.calibrate import CalibrationOptions
        from rksc_tot.evaluation.calibration.calibrate import calibrate as run
        from rksc_tot.policies.early_exit.fixed_sequence_testing import check_risk
        from rksc_tot.tasks import load_task
        from rksc_tot.verifiers import VERIFIERS
        from rksc_tot.views.terminal.fits.calibration import calibration_report

        importable_here(task)
        chosen = load_task(task)
        check_risk(delta, alpha)
        check_writable(out)
        strategy, found = search.strategy_for(chosen), source.load(search.seed)
        given = None if verifier is None else plug_in(VERIFIERS, "--verifier", verifier, "prm:FOLDER")
        asked, engine_arguments = share_budget(given, model.arguments(chosen))
        options: CalibrationOptions = {
            "strategy": strategy, "delta": delta, "alpha": alpha, "seed": search.seed, "concurrency": concurrency,
        }  # fmt: skip
        if asked is not None:
            options["verifier"] = asked
        engine = open_engine(*engine_arguments)
        try:
            with progress(len(found), not as_json) as on_problem:
                options["on_problem"] = on_problem
                calibration = run(chosen, found, engine=engine, **options)
        finally:
            engine.close()
        if as_json:
            print(calibration.model_dump_json())
        else:
            Console().print(calibration_report(calibration))
        calibration.save(out)
        if not as_json:
            Console().print(f"written to {out}", markup=False)
        if not calibration.accepted:
            raise typer.Exit(NOT_SOLVED)
