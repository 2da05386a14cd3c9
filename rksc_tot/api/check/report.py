"""The report of ``check_task``: findings in order, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rksc_tot.api.check.findings import Finding, Level
from rksc_tot.core.plugins.user_code import one_line

LEVELS: tuple[Level, ...] = ("error", "missing", "ok")
"""The levels in the order in which findings are shown."""
LINES = 6  # of a text that are shown


class ReportLine(NamedTuple):
    """A finding as it is shown.

    * ``level``, ``what``, ``message``: of the finding, the message on one line.
    * ``quoted``: lines of what the model wrote.
    """

    level: Level
    what: str
    message: str
    quoted: tuple[str, ...]


class TaskReport(list[Finding]):
    """The findings of :func:`~rksc_tot.check_task`. ``print`` shows them as a table, errors first."""

    @property
    def lines(self) -> Iterator[ReportLine]:
        """The findings as they are shown, errors first."""
        for level in LEVELS:
            for found in self:
                if found.level == level:
                    quoted = tuple(line for text in found.texts for line in _quoted(text))
                    yield ReportLine(level, found.what, one_line(found.message, 400), quoted)

    @property
    def verdict(self) -> str:
        """The number of findings of each level."""
        errors, missing, right = (sum(found.level == level for found in self) for level in LEVELS)
        look = f"{missing} to look at, " if missing else ""
        return f"{errors} error{'' if errors == 1 else 's'}, {look}{right} in order"

    def __str__(self) -> str:
        lines = [*self.lines]
        width = max((len(line.what) for line in lines), default=0)
        found = list[str]()
        for level, what, message, quoted in lines:
            found += [f"{level:7}  {what:{width}}  {message}", *(f"{'':7}  {line}" for line in quoted)]
        return "\n".join([*found, self.verdict])

    def __repr__(self) -> str:
        return f"<TaskReport: {self.verdict}>"


def _quoted(text: str) -> list[str]:
    """A text of the model with a line at its left, cut to a few lines."""
    lines = [one_line(line, 160) for line in text.strip("\n").split("\n")]
    shown = [*lines[:LINES], f"… {len(lines) - LINES} more lines"] if len(lines) > LINES + 1 else lines
    return [f"│ {line}" for line in shown]
