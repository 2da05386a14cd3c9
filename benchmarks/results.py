"""Writes docs/results.md: every benchmark and comparison, from one command.

``python -m benchmarks.results [--puzzles FILE --rows 901-1000] [--quick]``. The paper's hundred puzzles are read from a file
that is not part of this project; without it that table is left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.report import environment

TARGET = Path(__file__).parent.parent / "docs" / "results.md"
BENCHMARKS = ("exactness", "overhead")
PREFACE = """\
A puzzle is solved if the *first* answer of the search makes 24 from exactly the given numbers, checked in rational
arithmetic. *Tokens sampled* counts every branch, as a framework without shared branches would; *prefill* is what was
computed and stored, and equals *distinct* when nothing was computed twice. Only the last two rows are told by a checker
which of their chains is right; they may spend as many sampled tokens as ToT-BFS, or as many computed ones.

Searches run eight at a time, and which rows share a pass depends on timing; its floating-point noise may let a near tie in a
ranking fall otherwise from run to run."""


def last_json(command: Sequence[str]) -> dict[str, Any]:
    """What a command prints last, as JSON."""
    done = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, check=True)
    text = done.stdout.strip()
    found: dict[str, Any] = json.loads(text if text.startswith("{\n") else text.splitlines()[-1])
    return found


def compared(title: str, note: str, *arguments: str) -> str:
    """One comparison as a section."""
    rows = last_json(["-m", "rksc_tot.cli", "compare", "game24", "--json", *arguments])["rows"]
    head = "| strategy | solved | 95 % interval | tokens sampled | prefill | distinct | context prefill saved | verifier | s |"
    lines = [f"### {title}", "", note, "", head, "|---|---|---|---|---|---|---|---|---|"]
    lines += [
        f"| {r['strategy']} | {r['solved']} of {r['n']} | {r['low']:.0%} to {r['high']:.0%} | {r['tokens']} "
        f"| {r['prefill_tokens']} | {r['distinct_tokens']} | {r['prefill_saved']:.1%} | {r['verifier_tokens']} "
        f"| {r['seconds']:.1f} |"
        for r in rows
    ]
    return "\n".join(lines)


def figures(name: str, quick: bool) -> str:
    """One benchmark as a section."""
    found = last_json(["-m", f"benchmarks.{name}", "--json", *(["--quick"] if quick else [])])["figures"]
    lines = [f"### `{name}`", "", "| figure | value |", "|---|---|"]
    lines += [f"| `{k}` | {f'{v:.2e}' if isinstance(v, float) and v < 1e-3 else v} |" for k, v in found.items()]
    return "\n".join(lines)


def main(
    puzzles: Annotated[Path | None, typer.Option(help="ranked csv with the paper's puzzles")] = None,
    rows: Annotated[str, typer.Option(help="its rows")] = "901-1000",
    quick: Annotated[bool, typer.Option("--quick", help="smaller benchmarks, for a look")] = False,
) -> None:
    """Run everything and write docs/results.md."""
    machine = ", ".join(f"{key} {value}" for key, value in environment().items())
    sections = [
        "# Results",
        f"Written by `python -m benchmarks.results` on {datetime.now(UTC):%Y-%m-%d}. Machine and versions: {machine}.",
        "## Game of 24 with the embedded model",
        PREFACE,
    ]
    if puzzles:
        note = f"Ranks {rows} of the ranked csv, held out of training as roots. Seed 0."
        sections.append(compared("The hundred puzzles of the paper", note, "--puzzles", str(puzzles), "--rows", rows))
    sections += [
        compared("A hundred held-out puzzles of our own", "Never used as a root in training. Seed 0.", "--held-out"),
        compared(
            "Held-out three-number states",
            "Fifty puzzles; no three-number state from which they can be solved occurs anywhere in training. Seed 0.",
            "--held-out-states",
        ),
        "## Benchmarks",
        *(figures(name, quick) for name in BENCHMARKS),
    ]
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    print(f"wrote {TARGET.name}")


if __name__ == "__main__":
    typer.run(main)
