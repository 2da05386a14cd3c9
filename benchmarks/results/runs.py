"""The runs behind the results page, and the files of their figures."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).parents[2] / "docs"


class BenchmarkRun(NamedTuple):
    """A command whose last line of output is a JSON object of figures. ``name``: name of its file in docs/figures."""

    name: str
    command: list[str]


def all_runs(
    puzzles: Path | None,
    rows: str,
    trees: Path | None,
    models: Sequence[Path],
    quick: bool,
    own_rows: Path | None = None,
) -> Iterator[BenchmarkRun]:
    """All runs that the given files and models allow, in order."""
    from_csv = ["--puzzles", str(puzzles), "--rows", rows] if puzzles else []

    def benchmark(name: str, *arguments: str) -> BenchmarkRun:
        return BenchmarkRun(name, ["-m", "benchmarks", name, "--json", *(["--quick"] if quick else []), *arguments])

    if puzzles:
        yield BenchmarkRun("games-paper", benchmark("games", *from_csv).command)
    yield BenchmarkRun("games-roots", benchmark("games").command)
    yield BenchmarkRun("games-states", benchmark("games", "--states").command)

    def on_models(name: str, *arguments: str) -> Iterator[BenchmarkRun]:
        for folder in models:
            command = benchmark(name, "--model", str(folder), *arguments).command
            yield BenchmarkRun(f"{name}-{folder.name}", command)

    for name in (
        "exactness", "labels", "scale", "paper", "throughput", "roofline", "attention", "prm_depth", "peers",
        "families", "prm", "thinking", "sandbox",
    ):  # fmt: skip
        yield benchmark(name)
    yield benchmark("probe", *from_csv)
    yield benchmark("cgee", *from_csv)
    yield benchmark("memory", *(["--trees", str(trees)] if trees else []))
    yield benchmark("pressure", *from_csv)
    for name in ("labels", "peers", "cgee", "prompt_reuse", "pressure", "verifiers", "structured"):
        yield from on_models(name)
    if own_rows:
        yield from on_models("own_task", "--rows", str(own_rows), "--dtype", "bfloat16")


def carry_out(run: BenchmarkRun) -> None:
    """Run a command and keep its figures with the date, the wall time in seconds and the machine."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *run.command], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found |= {"date": f"{datetime.now(UTC):%Y-%m-%d}", "wall_seconds": round(time.perf_counter() - start)}
    file = figures_file(run.name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def figures_file(name: str) -> Path:
    """The file of a run's figures."""
    return DOCS / "figures" / f"{name}.json"


def kept_figures() -> dict[str, dict[str, Any]]:
    """The contents of docs/figures, by name of the run."""
    files = sorted((DOCS / "figures").glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
