"""A plot of accuracy and memory, from the figures of ``pressure``.

``python -m benchmarks.memory.plot FIGURES.json OUT.svg``
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from xml.sax.saxutils import escape

import typer

SUITES = {
    "games": "game of 24: puzzles solved",
    "thoughts": "long thoughts: searches that recite all",
    "paths": "one long path: questions answered right",
}
COLOURS = {
    "full": "#000000", "evict_rsbcm": "#8a8a8a", "evict_none": "#c4a35a", "arborkv": "#1f5fbf", "arborkv_lossy": "#4fb3e8",
    "arborkv_lossy_tail2": "#7a5fd0", "random_attention": "#d62728", "random_attention_one_set": "#f5902e",
    "snapkv": "#1a8a4a", "snapkv_kernel1": "#8fc93a", "streaming": "#c2408f",
}  # fmt: skip
WIDTH, HEIGHT = 330, 260  # of a panel's axes
LEFT, TOP, GAP = 48, 40, 62
LEGEND = 210
SHIFT = 2.0  # of neighbouring curves, so that points of equal memory are visible


class Point(NamedTuple):
    """Shares, 0..1: peak KV over that of full retention, and right answers with their interval."""

    memory: float
    solved: float
    low: float
    high: float


def curves(figures: Mapping[str, Any], suite: str) -> dict[str, list[Point]]:
    """The points of each policy, sorted by memory."""
    found: dict[str, list[Point]] = {}
    for name in figures:
        if at := re.fullmatch(rf"curve\.{suite}\.([a-z0-9_]+)(\.[0-9%]+)?\.memory", name):
            start = name.removesuffix("memory")
            point = (figures[start + part] for part in ("memory", "solved", "solved.low", "solved.high"))
            found.setdefault(at[1], []).append(Point(*point))
    return {name: sorted(points) for name, points in found.items()}


def draw(figures: Mapping[str, Any]) -> str:
    """The plot, an SVG document: one panel for each kind of work. Equal figures give equal bytes."""
    panels = {suite: curves(figures, suite) for suite in SUITES}
    width = LEFT + len(SUITES) * (WIDTH + GAP) + LEGEND
    height = TOP + HEIGHT + 56
    named = list(dict.fromkeys(_plain(name) for name in COLOURS if any(name in panel for panel in panels.values())))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for n, (suite, panel) in enumerate(panels.items()):
        parts += [f'<g transform="translate({LEFT + n * (WIDTH + GAP)} {TOP})">', *_axes(SUITES[suite])]
        ordered = sorted(panel, key=lambda name: (list(COLOURS).index(_plain(name)), name))
        for place, name in enumerate(ordered):
            parts += _curve(name, panel[name], SHIFT * (place - (len(ordered) - 1) / 2))
        parts.append("</g>")
    parts += [
        f'<g transform="translate({LEFT + len(SUITES) * (WIDTH + GAP) - 20} {TOP})">',
        *_legend(named),
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _plain(name: str) -> str:
    return name.removesuffix("_unpinned")


def _x(memory: float) -> str:
    return f"{WIDTH * min(memory, 1.05) / 1.05:.1f}"


def _y(share: float) -> str:
    return f"{HEIGHT * (1 - share):.1f}"


def _axes(title: str) -> Iterator[str]:
    yield f'<text x="{WIDTH / 2}" y="-16" text-anchor="middle" font-weight="bold">{escape(title)}</text>'
    for tick in range(5):
        share = tick / 4
        yield f'<path d="M0 {_y(share)}H{WIDTH}M{_x(share)} 0V{HEIGHT}" stroke="#e4e4e4" fill="none"/>'
        yield f'<text x="-6" y="{_y(share)}" dy="4" text-anchor="end">{share:.0%}</text>'
        yield f'<text x="{_x(share)}" y="{HEIGHT + 16}" text-anchor="middle">{share:.0%}</text>'
    yield f'<path d="M0 0V{HEIGHT}H{WIDTH}" stroke="black" fill="none"/>'
    yield f'<text x="{WIDTH / 2}" y="{HEIGHT + 36}" text-anchor="middle">peak KV, of full retention</text>'


def _curve(name: str, points: Sequence[Point], offset: float) -> Iterator[str]:
    colour, pinned = COLOURS[_plain(name)], _plain(name) == name
    shift = f'transform="translate({offset:.1f} 0)"'
    yield f'<g stroke="{colour}" fill="{colour if pinned else "white"}" {shift}><title>{escape(name)}</title>'
    path = "L".join(f"{_x(point.memory)} {_y(point.solved)}" for point in points)
    dashes = "" if pinned else ' stroke-dasharray="4 3"'
    yield f'<path d="M{path}" fill="none" stroke-width="1.6"{dashes}/>'
    for point in points:
        yield f'<path d="M{_x(point.memory)} {_y(point.low)}V{_y(point.high)}" fill="none" opacity="0.6"/>'
        yield f'<circle cx="{_x(point.memory)}" cy="{_y(point.solved)}" r="3.2"/>'
    yield "</g>"


def _legend(names: Sequence[str]) -> Iterator[str]:
    for n, name in enumerate(names):
        yield f'<circle cx="0" cy="{18 * n}" r="4" fill="{COLOURS[name]}"/><text x="10" y="{18 * n + 4}">{escape(name)}</text>'
    notes = (
        "dashed, hollow: the prompt",
        "is not pinned",
        "bars: 95 % (Wilson)",
        "curves are shifted a little",
        "to stay visible",
    )
    for n, said in enumerate(notes):
        yield f'<text x="-4" y="{18 * len(names) + 20 + 16 * n}" fill="#555555">{escape(said)}</text>'


def main(
    figures: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="output of `pressure --json`")],
    out: Annotated[Path, typer.Argument(help="SVG file to write")],
) -> None:
    """Draw the plot."""
    out.write_text(draw(json.loads(figures.read_text(encoding="utf-8"))["figures"]), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
