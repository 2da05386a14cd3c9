"""Progress and summary of a run of many searches."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from rksc_tot.api.outcomes import RunProgress, Tally
from rksc_tot.core.plugins.user_code import one_line
from rksc_tot.engine.base import Engine, Usage
from rksc_tot.views.terminal.pace import Pace

REASONS = 3  # most reasons a line of the summary


@contextmanager
def run_progress(
    tally: Tally, engine: Engine, console: Console, shown: bool, pace: Pace | None = None
) -> Iterator[Callable[[], None]]:
    """Show progress during the block. Yields a function to call after each outcome.

    On a terminal, the progress is a bar with the time left and figures below it. Elsewhere, it is a line of figures at the rate
    of ``pace``.
    """
    view, pace = _View(tally, engine), pace or Pace()

    def write_line() -> None:
        if pace.due():
            console.print(Text(view.line()), soft_wrap=True)

    if not shown:
        yield lambda: None
    elif not console.is_terminal:
        yield write_line
    else:
        with Live(view, console=console, transient=True, refresh_per_second=4):
            yield lambda: None


class _View:
    """Bar and figures, redrawn a few times a second."""

    def __init__(self, tally: Tally, engine: Engine) -> None:
        self._tally, self._engine = tally, engine
        self._start, self._before = time.perf_counter(), engine.usage
        columns = (BarColumn(None), MofNCompleteColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, expand=True)
        self._work = self._bar.add_task("", total=tally.total)

    def __rich__(self) -> Group:
        self._bar.update(self._work, completed=self._tally.finished)
        return Group(self._bar, Text(self._figures()))

    def line(self) -> str:
        """The number of finished problems and the figures, on one line."""
        total = "" if self._tally.total is None else f" of {self._tally.total}"
        return f"{self._tally.finished}{total} problems, {self._figures()}"

    def _figures(self) -> str:
        return figures(self._tally, self._before, self._engine.usage, time.perf_counter() - self._start)


def figures(tally: Tally, before: Usage, now: Usage, seconds: float) -> str:
    """Figures of a run on one line: speed, rows a pass, prefill saved, KV in use, problems solved, failed and refused."""
    passes = now.passes - before.passes
    budget = "" if now.kv_budget is None else f" of {now.kv_budget / 2**20:.0f}"
    parts = [
        f"{tally.finished / max(seconds, 1e-9):.2f} problems/s",
        f"{tally.spent.tokens_sampled / max(seconds, 1e-9):.0f} tokens/s",
        f"{(now.rows - before.rows) / passes if passes else 0:.1f} rows a pass",
        f"{tally.prefill_saved:.0%} prefill saved",
        f"KV {now.kv_bytes / 2**20:.1f}{budget} MiB",
    ]
    if tally.finished and tally.solved is not None:
        parts.append(f"{tally.solved} solved")
    parts += [f"{count} {name}" for name, count in (("failed", tally.failed), ("refused", tally.refused)) if count]
    return ", ".join(parts)


def record_of_run(tally: Tally, earlier: RunProgress, seconds: float) -> dict[str, Any]:
    """Totals over all problems of a file, as plain values.

    * ``problems``: number in the file. Each one is ``done``, ``cut`` by a budget of the run, or ``not_started``, which includes
      interrupted ones.
    * ``earlier``, ``now``: problems done in earlier runs, and in this run.
    * ``solved``: problems with a right answer, None if the task checked none. ``wrong``, ``unanswered``, ``refused``, ``failed``:
      problems with that verdict. ``limited``: problems that their own budget stopped.
    * ``reasons``: why problems have no answer, by verdict, the commonest first.
    * ``tokens``: sampled tokens. ``prefill_saved``: 0..1. ``approximate``: problems with thoughts or scores on approximate KV.
      ``seconds``, ``stopped``. All of these are of this run alone.
    """
    total = (tally.total or 0) + earlier.done
    reasons = {
        verdict: earlier.reasons.get(verdict, Counter()) + tally.reasons.get(verdict, Counter())
        for verdict in {**earlier.reasons, **tally.reasons}
    }
    whole = RunProgress(tally.checks, earlier.verdicts + tally.verdicts, earlier.limited + tally.limited, reasons)
    return {
        "problems": total,
        "done": whole.done,
        "earlier": earlier.done,
        "now": tally.done,
        "solved": whole.solved,
        "wrong": whole.verdicts["wrong"],
        "unanswered": whole.verdicts["unanswered"],
        "failed": whole.failed,
        "refused": whole.refused,
        "limited": whole.limited,
        "cut": whole.cut,
        "not_started": total - whole.finished,
        "tokens": tally.spent.tokens_sampled,
        "prefill_saved": tally.prefill_saved,
        "approximate": tally.approximate,
        "seconds": seconds,
        "stopped": tally.stopped,
        "reasons": {verdict: dict(found.most_common()) for verdict, found in reasons.items()},
    }


def run_summary(record: Mapping[str, Any]) -> Table:
    """The record of :func:`record_of_run` as a table, one figure a line. Verdicts with no problem are left out."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    again = record["earlier"] > 0
    now = " now" if again else ""
    rare = [
        ("wrong", "wrong"),
        ("no answer", "unanswered"),
        ("failed", "failed"),
        ("refused by the task", "refused"),
        ("stopped by its own budget", "limited"),
        ("cut by the run's budget", "cut"),
        ("not started", "not_started"),
    ]
    for name, value in (
        ("problems", f"{record['problems']}"),
        ("done", f"{record['done']}" + (f": {record['earlier']} earlier, {record['now']} now" if again else "")),
        ("solved", "not checked" if record["solved"] is None else f"{record['solved']} of {record['done']}"),
        *((name, _counted(record, key)) for name, key in rare if record[key]),
        ("tokens sampled", f"{record['tokens']}{now}"),
        ("prefill saved", f"{record['prefill_saved']:.1%}"),
        *([("on approximate KV", f"{record['approximate']}{now}")] if record["approximate"] else []),
        ("seconds", f"{record['seconds']:.1f}"),
        ("stopped", one_line(str(record["stopped"]))),
    ):
        table.add_row(name, Text(value))
    return table


def _counted(record: Mapping[str, Any], key: str) -> str:
    """The number of problems with a verdict, and the commonest reasons, one a line."""
    reasons = list(record["reasons"].get(key, {}).items())
    lines = [f"{count}\N{MULTIPLICATION SIGN} {one_line(reason, 200)}" for reason, count in reasons[:REASONS]]
    more = [f"and {len(reasons) - REASONS} more reasons"] if len(reasons) > REASONS else []
    return "\n".join([f"{record[key]}", *lines, *more])
