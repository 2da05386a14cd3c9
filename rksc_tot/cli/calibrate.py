"""The command ``rksc-tot calibrate``: which decisions a model may take early on a task, as a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from rksc_tot.cli.arguments import (
    AsJson,
    Debug,
    Device,
    Dtype,
    Model,
    Seed,
    Settings,
    StrategyName,
    importable_here,
    settings_of,
)
from rksc_tot.cli.failing import NOT_SOLVED, one_sentence
from rksc_tot.errors import ConfigError


def check_writable(out: Path) -> None:
    """Refuse a file that cannot be written, before anything is searched."""
    if out.is_dir() or not out.absolute().parent.is_dir() or not os.access(out.absolute().parent, os.W_OK):
        raise ConfigError(f"{str(out)!r} cannot be written", hint="name a file in a folder that is there")


def calibrate(
    task: Annotated[str, typer.Argument(help="Such as game24, or your own as module:attribute; it needs a question.")],
    problems: Annotated[list[str] | None, typer.Argument(help="Problems, one an argument.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--problems", help="A file of problems: a text a line, or a .jsonl as `run` takes it."),
    ] = None,
    training: Annotated[
        bool, typer.Option("--training-puzzles", help="All game-of-24 puzzles that are not held out.")
    ] = False,
    without: Annotated[
        Path | None, typer.Option(help="A csv with columns Rank and Puzzles: training puzzles to leave out.")
    ] = None,
    rows: Annotated[str | None, typer.Option(help="Which ranks of that file, such as 901-1000.")] = None,
    most: Annotated[int | None, typer.Option(min=1, help="Use a random choice of so many problems.")] = None,
    delta: Annotated[float, typer.Option(help="Of the decisions taken early, the share that may differ.")] = 0.01,
    alpha: Annotated[float, typer.Option(help="How improbable it must be that more than that differ.")] = 0.05,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("calibration.json"),
    strategy: StrategyName = "bfs",
    settings: Settings = None,
    model: Model = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    seed: Seed = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Searches in flight.")] = 8,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Find out which of a verifier's decisions may be taken early; show what that saves, and write it to a file.

    The file is for `rksc-tot solve --calibration FILE`. What no threshold passes the test for stays off.

    Exit code 0: something passed; 3: nothing did; 1: an error; 2: wrong usage.
    """
    with one_sentence(debug):
        from rich.console import Console

        from rksc_tot.calibration.problems import calibration_problems
        from rksc_tot.calibration.run import calibrate as run
        from rksc_tot.cli.commands import check_model, open_engine
        from rksc_tot.cli.output import progress
        from rksc_tot.policies.ltt import check_risk
        from rksc_tot.setup import usual_settings
        from rksc_tot.show.calibrated import calibrated
        from rksc_tot.strategies import STRATEGIES
        from rksc_tot.tasks import load_task

        importable_here(task, strategy)
        chosen = load_task(task)
        check_risk(delta, alpha)
        check_writable(out)
        search = STRATEGIES.make(strategy, **(usual_settings(chosen, strategy) | settings_of(settings or [])))
        found = calibration_problems(problems or [], file, training, without, rows, most, seed)
        check_model(model)
        engine = open_engine(model, device, dtype)
        try:
            with progress(len(found), not as_json) as on_problem:
                calibration = run(
                    chosen, found, engine=engine, strategy=search, delta=delta, alpha=alpha, seed=seed,
                    concurrency=concurrency, on_problem=on_problem,
                )  # fmt: skip
        finally:
            engine.close()
        if as_json:
            print(calibration.model_dump_json())
        else:
            Console().print(calibrated(calibration))
        calibration.save(out)
        if not as_json:
            Console().print(f"written to {out}", markup=False)
        if not calibration.accepted:
            raise typer.Exit(NOT_SOLVED)
