"""Puzzles of the game of 24: all puzzles, and the puzzles of a file."""

from __future__ import annotations

import csv
import math
from itertools import combinations_with_replacement
from pathlib import Path

from rksc_tot.core.errors import ConfigError
from rksc_tot.tasks.game24.world import (
    State,
    reaches,
)


def all_puzzles() -> list[State]:
    """Every multiset of four numbers 1..13 that makes 24 with whole intermediate results 0..199."""
    return [p for p in combinations_with_replacement(range(1, 14), 4) if reaches(p)]


def read_puzzles(file: Path, rows: str | None = None) -> list[State]:
    """The puzzles of a ranked csv with columns ``Rank`` and ``Puzzles``: all, or those with a rank in ``rows``.

    Raises
    ------
    ConfigError
        If ``rows`` is not a range such as ``901-1000``, or the file is not such a csv or has no puzzle in the range.
    """
    first, last = -math.inf, math.inf
    try:
        if rows is not None:
            low, _, high = rows.partition("-")
            first, last = int(low), int(high or low)
    except ValueError:
        raise ConfigError(f"rows {rows!r} is not a range", hint="write FIRST-LAST, such as 901-1000") from None
    if not file.is_file():
        raise ConfigError(f"no puzzle file at {str(file)!r}", hint="give a csv with the columns Rank and Puzzles")
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            if not {"Rank", "Puzzles"} <= set(reader.fieldnames or ()):
                raise ConfigError(f"{file.name} lacks a column Rank or Puzzles", hint="name them in its first line")
            found = [
                tuple(sorted(_whole_numbers(file, reader.line_num, row, "Puzzles")))
                for row in reader
                if first <= _whole_numbers(file, reader.line_num, row, "Rank")[0] <= last
            ]
    except (OSError, UnicodeError, csv.Error) as error:
        raise ConfigError(f"{str(file)!r} cannot be read: {error}", hint="give a csv in UTF-8") from None
    if not found:
        where, hint = (
            (f" of a rank in {rows}", "check --rows") if rows is not None else ("", "write one puzzle on each line")
        )
        raise ConfigError(f"{file.name} has no puzzle{where}", hint=hint)
    return found


def _whole_numbers(file: Path, line: int, row: dict[str, str | None], column: str) -> list[int]:
    """The numbers of a cell. Raises ConfigError if there are none."""
    cell = row[column] or ""
    try:
        numbers = [int(word) for word in cell.split()]
    except ValueError:
        numbers = []
    if not numbers:
        what = f"{cell[:40]!r}, not whole numbers" if cell.strip() else "empty"
        raise ConfigError(f"{file.name} line {line}: {column} is {what}", hint="write lines such as 1,4 5 6 10")
    return numbers
