"""Markdown tables from figures with dotted names, and sentences about marks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Figures = Mapping[str, Any]


def table(corner: str, rows: Sequence[str], columns: Sequence[str], cell: Callable[[str, str], str]) -> list[str]:
    """A table whose cells are ``cell(row, column)``; a row without cells is left out."""
    lines = [f"| {corner} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row in rows:
        cells = [cell(row, column) for column in columns]
        if any(cells):
            lines.append(f"| {row} | {' | '.join(each or '–' for each in cells)} |")
    return lines


def number(value: Any, unit: str = "") -> str:
    """A figure in three significant digits; empty for None."""
    if value is None:
        return ""
    if isinstance(value, bool | str):
        return str(value).lower() if isinstance(value, bool) else value
    if value and abs(value) < 1e-3:
        return f"{value:.1e}{unit}"
    return f"{value:,.0f}{unit}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:.3g}{unit}"


def interval(figures: Figures, name: str, unit: str = "") -> str:
    """A figure with its 95 % interval, if it has one."""
    if (value := figures.get(name)) is None:
        return ""
    low, high = figures.get(f"{name}.low"), figures.get(f"{name}.high")
    return number(value, unit) + ("" if low is None else f" ({number(low)}–{number(high)})")


def parts(figures: Figures, prefix: str) -> list[str]:
    """The distinct next parts of the names after ``prefix``, in order of appearance."""
    found = (name.removeprefix(f"{prefix}.").split(".")[0] for name in figures if name.startswith(f"{prefix}."))
    return list(dict.fromkeys(found))


def mark(what: str, value: Any, least: float | None = None, most: float | None = None, unit: str = "") -> str:
    """One sentence: a figure, its mark, and whether it is met."""
    if value is None:
        return f"{what.removesuffix(':')}: not measured."
    bound = f"at least {number(least)}" if least is not None else f"at most {number(most)}"
    met = value >= least if least is not None else most is not None and value <= most
    return f"{what} {number(value)}{unit} (mark: {bound}{unit}): {'met' if met else '**missed**'}."


def section(intro: str, rows: Sequence[str], *sentences: str) -> list[str]:
    """The lines of a section: an introduction, the table, and a paragraph with the verdict."""
    return [intro, "", *rows, "", " ".join(sentence for sentence in sentences if sentence)]
