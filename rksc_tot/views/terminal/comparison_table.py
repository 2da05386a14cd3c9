"""A comparison as a table of 80 columns, with notes on failures and missing answers below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rksc_tot.core.plugins.user_code import one_line
from rksc_tot.evaluation import Row


def comparison_table(rows: Sequence[Row]) -> RenderableType:
    """One line for each contender: solved with its 95 % interval, tokens, prefill saved by sharing, seconds."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("\nstrategy", overflow="fold", ratio=1)
    for title in (
        "\nsolved",
        "\n95 %",
        "tokens\nsampled",
        "tokens\nverifier",
        "tokens\nprefilled",
        "prefill\nsaved",
        "\ns",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            Text(one_line(row.strategy)),
            f"{row.solved}/{row.n}",
            f"{row.low:.0%}-{row.high:.0%}".replace("%-", "-"),
            f"{row.tokens}",
            f"{row.verifier_tokens}",
            f"{row.prefill_tokens}" + ("" if row.prefill_tokens == row.distinct_tokens else "*"),
            f"{row.prefill_saved:.0%}",
            f"{row.seconds:.1f}",
        )
    notes = [*_failures(rows), *(_unanswered(row) for row in rows if row.unanswered)]
    if any(row.prefill_tokens != row.distinct_tokens for row in rows):
        notes.append(
            Text(
                "* more than the distinct tokens: some rows were computed again, after an eviction or to get the logits of "
                "a stored path",
                style="dim",
            )
        )
    return Group(table, *notes)


def _unanswered(row: Row) -> Text:
    """The number of searches without an answer, and the commonest reason."""
    [(reason, count), *more] = row.reasons.items()
    others = f"; --json lists {len(more)} more reasons" if more else ""
    return Text(
        f"{one_line(row.strategy)}: {row.unanswered} without an answer,"
        f" {count}\N{MULTIPLICATION SIGN} {one_line(reason, 200)}{others}"
    )


def _failures(rows: Sequence[Row], most: int = 5) -> list[Text]:
    """One note for each failed problem and error."""
    found = Counter((failure.problem, failure.error) for row in rows for failure in row.failures)
    notes = [
        Text(f"{one_line(problem)}: failed in {count} row{'' if count == 1 else 's'}: {one_line(error)}")
        for (problem, error), count in found.most_common(most)
    ]
    if len(found) > most:
        notes.append(Text(f"and {len(found) - most} more failures; --json lists all of them"))
    return notes
