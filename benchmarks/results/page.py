"""Write docs/results.md and docs/results_own_work.md from the figures in docs/figures: one question a section.

``python -m benchmarks results [--puzzles FILE --rows 901-1000] [--own-rows FILE] [--trees FILE] [--model FOLDER …] [--quick]
[--only NAME …]`` runs the benchmarks first. With ``--only none`` it writes the page from the kept figures. Benchmarks that need a
missing file or model are skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.memory.plot import draw
from benchmarks.results import games, memory, own_work, real_models, speed
from benchmarks.results.runs import DOCS, all_runs, carry_out, kept_figures

PREFACE = """\
# {title}

Written by `python -m benchmarks results` from [figures](figures), which has all figures with machine, versions and date. \
Numbers in brackets are 95 % intervals. Ratios of times come from one interleaved run. A *mark* is the target of a figure."""

PAGES = {
    "results.md": ("Results", (*games.SECTIONS, *speed.SECTIONS, *memory.SECTIONS, *real_models.SECTIONS)),
    "results_own_work.md": ("Results: tasks, verifiers and tools", own_work.SECTIONS),
}


def write() -> None:
    """Write the pages, and the plot of ``pressure``, from the kept figures."""
    found = kept_figures()
    if "pressure" in found:
        (DOCS / "pressure.svg").write_text(draw(found["pressure"]["figures"]), encoding="utf-8")
    for file, (title, sections) in PAGES.items():
        text = [PREFACE.format(title=title)]
        for question, lines in sections:
            if body := lines(found):
                text.append("\n".join([f"## {question}", "", *body]))
        (DOCS / file).write_text("\n\n".join(text) + "\n", encoding="utf-8")


def main(
    puzzles: Annotated[Path | None, typer.Option(help="ranked csv with the paper's puzzles")] = None,
    rows: Annotated[str, typer.Option(help="ranks of the puzzles")] = "901-1000",
    own_rows: Annotated[Path | None, typer.Option(help="JSON lines with question and answer, as GSM8K")] = None,
    trees: Annotated[Path | None, typer.Option(help="recorded search trees")] = None,
    model: Annotated[list[Path] | None, typer.Option(help="folder of a real model; repeatable")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="smaller benchmarks, for a preview")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(help="run only the run of this name in docs/figures; repeatable; none: run no benchmark"),
    ] = None,
) -> None:
    """Run the benchmarks and write the pages of results."""
    wanted = list(all_runs(puzzles, rows, trees, model or [], quick, own_rows))
    chosen = None if only is None else {*only} - {"none"}
    if unknown := (chosen or set()) - {run.name for run in wanted}:
        raise typer.BadParameter(f"no run {', '.join(unknown)}; there are {', '.join(run.name for run in wanted)}")
    for run in wanted:
        if chosen is None or run.name in chosen:
            print(run.name, flush=True)
            carry_out(run)
    write()
    print("wrote " + " and ".join(f"docs/{file}" for file in PAGES))
