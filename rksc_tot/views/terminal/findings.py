"""The report of ``check_task`` in colours: what is wrong, what is missing, what the model wrote, and what is in order."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rksc_tot.api.check.report import TaskReport

MARKS = {"error": ("✗", "bold red"), "missing": ("!", "yellow"), "ok": ("✓", "green")}


def findings_report(report: TaskReport) -> RenderableType:
    """The lines of the report; texts of the model stand below their finding."""
    parts: list[RenderableType] = []
    for level, what, message, quoted in report.lines:
        mark, style = MARKS[level]
        line = Table.grid(padding=(0, 1))
        line.add_row(Text(mark, style=style), Text(what, style="bold"), Text(message))
        parts += [line, *(Padding(Text(text, style="dim"), (0, 0, 0, 4)) for text in quoted)]
    return Group(*parts, Text(report.verdict, style="bold"))
