"""The findings of ``check_task`` as text: what is wrong, what is missing, what the model wrote, and what is in order."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rksc_tot.api.check.findings import Finding
from rksc_tot.views.terminal.plain_text import one_line

MARKS = {"error": ("✗", "bold red"), "missing": ("!", "yellow"), "ok": ("✓", "green")}
LINES = 6  # of a text that are shown


def findings_report(findings: Sequence[Finding]) -> RenderableType:
    """Errors first, then what is missing, then what is in order; texts of the model stand below their finding."""
    parts: list[RenderableType] = []
    for level, (mark, style) in MARKS.items():
        for finding in findings:
            if finding.level == level:
                line = Table.grid(padding=(0, 1))
                line.add_row(
                    Text(mark, style=style), Text(finding.what, style="bold"), Text(one_line(finding.message, 400))
                )
                parts += [line, *(Padding(_quoted(text), (0, 0, 0, 4)) for text in finding.texts)]
    counts = {level: sum(finding.level == level for finding in findings) for level in MARKS}
    missing = f"{counts['missing']} to look at, " if counts["missing"] else ""
    verdict = f"{counts['error']} error{'' if counts['error'] == 1 else 's'}, {missing}{counts['ok']} in order"
    return Group(*parts, Text(verdict, style="bold"))


def _quoted(text: str) -> Text:
    """A text of the model with a line at its left, cut to a few lines."""
    lines = [one_line(line, 160) for line in text.strip("\n").split("\n")]
    shown = [*lines[:LINES], f"… {len(lines) - LINES} more lines"] if len(lines) > LINES + 1 else lines
    return Text("\n".join(f"│ {line}" for line in shown), style="dim")
