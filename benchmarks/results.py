"""Writes docs/results.md: every benchmark and comparison, from one command.

``python -m benchmarks.results [--puzzles FILE --rows 901-1000] [--trees FILE] [--model FOLDER …] [--quick] [--only NAME …]``.
Files and models are not part of this project; what needs one that is not given is left out. The figures of each run are kept
in docs/figures, so that ``--only`` runs some of them again and the page still shows all.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from benchmarks.common.report import environment
from benchmarks.memory.plot import draw

DOCS = Path(__file__).parent.parent / "docs"
PREFACE = """\
A puzzle is solved if the *first* answer of the search makes 24 from exactly the given numbers, checked in rational
arithmetic. *Tokens sampled* counts every branch, as a framework without shared branches would; *prefill* is what was
computed and stored, and equals *distinct* when nothing was computed twice. Only the last two rows are told by a checker
which of their chains is right; they may spend as many sampled tokens as ToT-BFS, or as many computed ones.

Searches run eight at a time; what each finds does not depend on its company (docs/determinism.md)."""


class Run(NamedTuple):
    """One command that prints figures last. ``games``: a comparison of strategies, not a benchmark."""

    name: str
    title: str
    note: str
    command: list[str]
    games: bool = False


def runs(puzzles: Path | None, rows: str, trees: Path | None, models: Sequence[Path], quick: bool) -> Iterator[Run]:
    """Everything that can be run with what is given, in the order of the page."""
    from_csv = ["--puzzles", str(puzzles), "--rows", rows] if puzzles else []
    if puzzles:
        note = f"Ranks {rows} of the ranked csv, held out of training as roots. Seed 0."
        yield _games("games-paper", "The hundred puzzles of the paper", note, *from_csv)
    note = "Never used as a root in training. Seed 0."
    yield _games("games-roots", "A hundred held-out puzzles of our own", note, "--held-out")
    note = "Fifty puzzles; no three-number state from which they can be solved occurs anywhere in training. Seed 0."
    yield _games("games-states", "Held-out three-number states", note, "--held-out-states")
    shortly = ["--quick"] if quick else []

    def benchmark(name: str, *arguments: str, of: Path | None = None) -> Run:
        told = f" on {of.name}" if of else ""
        label = f"{name}-{of.name}" if of else name
        model = ["--model", str(of)] if of else []
        command = ["-m", f"benchmarks.{name}", "--json", *shortly, *arguments, *model]
        return Run(label, f"`{name}`{told}", _explanation(name), command)

    yield benchmark("exactness")
    yield benchmark("scale")
    yield benchmark("paper")
    yield benchmark("throughput")
    yield benchmark("roofline")
    yield benchmark("attention")
    yield benchmark("prm_depth")
    yield benchmark("peers")
    yield from (benchmark("peers", of=model) for model in models)
    yield benchmark("cgee", *from_csv)
    yield from (benchmark("cgee", of=model) for model in models)
    yield from (benchmark("prompt_reuse", of=model) for model in models)
    yield benchmark("memory", *(["--trees", str(trees)] if trees else []))
    yield benchmark("pressure", *from_csv)
    yield from (benchmark("pressure", of=model) for model in models)


def _games(name: str, title: str, note: str, *arguments: str) -> Run:
    return Run(name, title, note, ["-m", "rksc_tot.cli", "compare", "game24", "--json", *arguments], games=True)


def on_cards() -> Iterator[Run]:
    """What ``benchmarks/gpu.sh docs/figures`` has left there; it is shown, not run."""
    for file in sorted((DOCS / "figures").glob("gpu-*.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        title = f"`{found['name']}` on {found['environment']['card']}"
        yield Run(file.stem, title, f"As above, by `benchmarks/gpu.sh`: {file.stem.removeprefix('gpu-')}.", [])


def _explanation(name: str) -> str:
    """What a benchmark says of itself and of its figures."""
    text = (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
    return text.removeprefix('"""').split('"""')[0].strip()


def carry_out(run: Run) -> None:
    """Run a command, and keep what it found."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *run.command], stdout=subprocess.PIPE, text=True, check=True)
    text = done.stdout.strip()
    found: dict[str, Any] = json.loads(text if text.startswith("{\n") else text.splitlines()[-1])
    found |= {"date": f"{datetime.now(UTC):%Y-%m-%d}", "wall_seconds": round(time.perf_counter() - start)}
    found.setdefault("environment", environment())
    _file(run).parent.mkdir(parents=True, exist_ok=True)
    _file(run).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if run.name == "pressure":
        (DOCS / "pressure.svg").write_text(draw(found["figures"]), encoding="utf-8")


def _file(run: Run) -> Path:
    return DOCS / "figures" / f"{run.name}.json"


def section(run: Run) -> str:
    """What a run found, as a part of the page."""
    found = json.loads(_file(run).read_text(encoding="utf-8"))
    machine = ", ".join(f"{key} {value}" for key, value in found["environment"].items())
    picture = [f"![{run.name}]({run.name}.svg)", ""] if (DOCS / f"{run.name}.svg").is_file() else []
    lines = [f"### {run.title}", "", run.note, "", *picture, *(_standings(found) if run.games else _figures(found)), ""]
    when = f"{found['date']}, {found['wall_seconds']} s; " if "date" in found else ""
    return "\n".join([*lines, f"{when}{machine}."])


def _standings(found: dict[str, Any]) -> Iterator[str]:
    yield "| strategy | solved | 95 % interval | tokens sampled | prefill | distinct | context prefill saved | verifier | s |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for r in found["rows"]:
        yield (
            f"| {r['strategy']} | {r['solved']} of {r['n']} | {r['low']:.0%} to {r['high']:.0%} | {r['tokens']} "
            f"| {r['prefill_tokens']} | {r['distinct_tokens']} | {r['prefill_saved']:.1%} | {r['verifier_tokens']} "
            f"| {r['seconds']:.1f} |"
        )


def _figures(found: dict[str, Any]) -> Iterator[str]:
    """A line a figure; the interval of one beside it."""
    figures: dict[str, Any] = found["figures"]
    yield from ("| figure | value |", "|---|---|")
    for name, value in figures.items():
        if name.rpartition(".")[2] in ("low", "high") and name.rpartition(".")[0] in figures:
            continue
        low, high = figures.get(f"{name}.low"), figures.get(f"{name}.high")
        between = "" if low is None else f" ({_shown(low)} to {_shown(high)})"
        yield f"| `{name}` | {_shown(value)}{between} |"


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2e}" if 0 < abs(value) < 1e-3 else f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    return " ".join(str(value).replace("|", "\\|").split())


def main(
    puzzles: Annotated[Path | None, typer.Option(help="ranked csv with the paper's puzzles")] = None,
    rows: Annotated[str, typer.Option(help="its rows")] = "901-1000",
    trees: Annotated[Path | None, typer.Option(help="recorded search trees")] = None,
    model: Annotated[list[Path] | None, typer.Option(help="folder of a real model; repeatable")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="smaller benchmarks, for a look")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="run only this, by its name in docs/figures; repeatable")
    ] = None,
) -> None:
    """Run everything and write docs/results.md."""
    wanted = list(runs(puzzles, rows, trees, model or [], quick))
    if unknown := set(only or ()) - {run.name for run in wanted}:
        raise typer.BadParameter(f"no run {', '.join(unknown)}; there are {', '.join(run.name for run in wanted)}")
    for run in wanted:
        if only is None or run.name in only:
            print(run.name, flush=True)
            carry_out(run)
    known = [run for run in wanted if _file(run).is_file()]
    games = [section(run) for run in known if run.games]
    benchmarks = [section(run) for run in (*known, *on_cards()) if not run.games]
    parts = ["# Results", "Written by `python -m benchmarks.results`. Misses and refusals stand here like everything else.",
             "## Game of 24 with the embedded model", PREFACE, *games, "## Benchmarks", *benchmarks]  # fmt: skip
    (DOCS / "results.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print("wrote docs/results.md")


if __name__ == "__main__":
    typer.run(main)
