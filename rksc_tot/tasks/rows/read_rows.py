"""Reads rows: from JSON lines, CSV, a list of dicts, or a data set of the package ``datasets``."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rksc_tot.core.errors import ConfigError, MissingExtra
from rksc_tot.core.plugins.strict_json import parse_strictly
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, shown
from rksc_tot.core.task import Problem

Row = dict[str, Any]
Source = str | os.PathLike[str] | Iterable[Mapping[str, Any]]
LINE = 'write each row as a line of JSON, such as {"question": "What is 2 + 3?", "answer": "5"}'
SHOWN = 3  # faults that a message lists


def read_rows(source: Source) -> list[Row]:
    """The rows of a file ``*.jsonl``, ``*.csv`` or ``*.tsv``, of a folder that ``datasets`` wrote, or of an iterable of dicts.

    Raises
    ------
    ConfigError
        If the source cannot be read, is empty, or holds something else.
    MissingExtra
        If the source is a folder and ``datasets`` is not installed.
    """
    if isinstance(source, str | os.PathLike):
        file = Path(source)
        rows = _from_folder(file) if os.path.isdir(file) else _from_file(file)  # Path.is_dir may raise
        name = repr(str(file))
    else:
        rows, name = _from_iterable(source), "the list of rows"
    if not rows:
        raise ConfigError(f"{name} holds no row", hint=LINE if name.endswith("l'") else "give at least one row")
    return rows


def problems_of(rows: Sequence[Row], id: str | None) -> list[Problem]:
    """Each row as a problem. Its id is the field ``id`` if the row has it, else the number of the row, from 1.

    Raises
    ------
    ConfigError
        If an id is neither a string nor a whole number, or two rows have the same id.
    """
    if id is not None and not isinstance(id, str):
        raise ConfigError(f"the field of ids is {shown(id)}", hint="give the name of a field, or None")
    problems: list[Problem] = []
    seen: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        given = number if id is None else row.get(id, number)
        if not isinstance(given, str | int) or isinstance(given, bool):
            raise ConfigError(
                f"row {number} has the id {shown(given)}", hint="give a string or a whole number, or set id=None"
            )
        first = seen.setdefault(str(given), number)
        if first != number:
            raise ConfigError(
                f"rows {first} and {number} have the id {given!r}",
                hint="give each row an id of its own, or set id=None to number the rows",
            )
        problems.append(Problem(row, given))
    return problems


def refuse(faults: Iterable[str], hint: str) -> None:
    """Raise ConfigError with the first faults, if there are any."""
    found = list(faults)
    if found:
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise ConfigError("; ".join(found[:SHOWN]) + more, hint=hint)


def _from_file(file: Path) -> list[Row]:
    readers = {".jsonl": _json_lines, ".ndjson": _json_lines, ".csv": _table, ".tsv": _table}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise ConfigError(
            f"{str(file)!r} is neither JSON lines nor CSV", hint=f"name a file that ends in {', '.join(readers)}"
        )
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{str(file)!r} is not UTF-8: {error.reason} at byte {error.start}", hint="write the file in UTF-8"
        ) from None
    except (OSError, ValueError) as error:  # ValueError for a name with a null byte
        raise ConfigError(
            f"{shown(str(file))} cannot be read: {getattr(error, 'strerror', None) or error}",
            hint="name a file of rows",
        ) from None
    return reader(file, text)


def _json_lines(file: Path, text: str) -> list[Row]:
    rows, faults = list[Row](), list[str]()
    for number, raw in enumerate(text.split("\n"), 1):
        if not raw.strip():
            continue
        try:
            value = parse_strictly(raw)
            if not isinstance(value, dict):
                raise ValueError(f"is {shown(value, 40)}, not an object")
            rows.append(value)
        except ValueError as error:
            faults.append(f"{str(file)!r}: line {number} {error}")
    refuse(faults, LINE)
    return rows


def _table(file: Path, text: str) -> list[Row]:
    lines = csv.reader(
        io.StringIO(text, newline=""), delimiter="\t" if file.suffix.lower() == ".tsv" else ",", strict=True
    )
    try:
        header, *records = [*_numbered(lines)] or [(1, [])]
    except csv.Error as error:
        raise ConfigError(
            f"{str(file)!r}: line {lines.line_num} is not CSV: {error}",
            hint="put cells with commas, quotes or line breaks in quotes; write cells over 131,072 characters as JSON lines",
        ) from None
    names = header[1]
    if len(set(names)) < len(names):
        raise ConfigError(f"{str(file)!r} has two columns of the same name", hint="name each column differently")
    refuse(
        (
            f"{str(file)!r}: line {number} has {len(cells)} cells, the first line has {len(names)}"
            for number, cells in records
            if len(cells) != len(names)
        ),
        "give each line one cell for each column; the first line has the names",
    )
    return [dict(zip(names, cells, strict=True)) for _, cells in records]


def _numbered(lines: Any) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not blank, with their numbers."""
    for cells in lines:
        if cells:
            yield lines.line_num, cells


def _from_iterable(source: object) -> list[Row]:
    if isinstance(source, Mapping):
        keys = ", ".join(map(str, list(source)[:SHOWN]))
        raise ConfigError(
            f"the rows are a mapping with the keys {keys}", hint="give a list of rows; of a data set, one split"
        )
    if not isinstance(source, Iterable):
        raise ConfigError(f"the rows are {shown(source)}", hint="give a file, a list of dicts, or a data set")
    rows: list[Row] = []
    try:
        with calling_user_code("the rows", ConfigError):
            for number, row in enumerate(source, 1):
                if not isinstance(row, Mapping) or not all(isinstance(key, str) for key in row):
                    raise ConfigError(
                        f"row {number} is {shown(row)}", hint='give each row as a dict, such as {"question": "…"}'
                    )
                rows.append(dict(row))
    except UserCodeError as raised:
        raise ConfigError(str(raised), hint="give a list of dicts") from raised.error
    return rows


def _from_folder(folder: Path) -> list[Row]:
    try:
        import datasets
    except ImportError:
        raise MissingExtra(
            f"{str(folder)!r} is a folder, which the package datasets reads", hint="pip install rksc-tot[datasets]"
        ) from None
    try:
        with calling_user_code("datasets"):
            found: object = datasets.load_from_disk(str(folder))
    except UserCodeError as raised:
        raise ConfigError(
            f"{str(folder)!r} cannot be read: {raised}", hint="name a folder that Dataset.save_to_disk wrote"
        ) from raised.error
    return _from_iterable(found)
