"""Read JSON lines: files of problems, and files of results, which ``cli/results_writer.py`` writes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rksc_tot.api.outcomes import Verdict
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.strict_json import parse_strictly
from rksc_tot.core.task import Problem
from rksc_tot.core.tree import ReasoningTree

RESULT_KEYS = ("verdict", "result", "failure", "settings")  # keys that a results line adds to those of its problem
FORM = 'write each problem as a line of JSON: "the problem", or {"problem": …, "id": …}'
SHOWN = 3  # faults of a file that the message lists


@dataclass(frozen=True, slots=True)
class ProblemLine:
    """One line of a file of problems. ``fields``: all its keys, ``problem`` and ``id`` included. ``number``: from 1."""

    number: int
    fields: dict[str, Any]

    @property
    def problem(self) -> Problem:
        """The problem with its id, as :func:`~rksc_tot.solve_many` takes it."""
        return Problem(self.fields["problem"], self.fields["id"])


def read_problems(file: str) -> list[ProblemLine]:
    """Read a file of problems; ``-`` means stdin. Blank lines are skipped.

    Raises
    ------
    ConfigError
        If the file cannot be read or holds no problem, or if a line is malformed, repeats an id, or has a key of the results.
    """
    name = "stdin" if file == "-" else repr(file)
    try:
        if file == "-" and sys.stdin is None:
            raise ConfigError("stdin is closed", hint="pipe the problems to it, or name a file of problems")
        text = (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror or error}", hint="name a file of problems") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8: {error.reason} at byte {error.start}", hint=FORM) from None
    lines: list[ProblemLine] = []
    faults: list[str] = []
    seen: dict[str, int] = {}
    for number, raw in enumerate(text.split("\n"), 1):
        if not raw.strip():
            continue
        try:
            line = ProblemLine(number, _fields(raw, number))
            first = seen.setdefault(str(line.fields["id"]), number)
            if first != number:
                raise ValueError(f"repeats the id {line.fields['id']!r} of line {first}")
            lines.append(line)
        except ValueError as error:
            faults.append(f"line {number} {error}")
    if faults:
        more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise ConfigError(f"{name}: {'; '.join(faults[:SHOWN])}{more}", hint=FORM)
    if not lines:
        raise ConfigError(f"{name} holds no problem", hint=FORM)
    return lines


def read_results(file: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Read a results file, one dict a line.

    The keys are those of the problem's line and ``verdict`` (see :class:`~rksc_tot.api.outcomes.Outcome`), ``result`` or None,
    ``failure`` or None, and ``settings``. A tree in ``result`` becomes a :class:`~rksc_tot.core.tree.ReasoningTree`. An
    incomplete last line is skipped.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a line is not a result.
    """
    for _, record in raw_results(Path(file)):
        if record["result"] is not None and "tree" in record["result"]:
            record["result"]["tree"] = ReasoningTree.from_records(record["result"]["tree"])
        yield record


def raw_results(file: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The complete lines of a results file, as bytes and as dicts. Raises the errors of :func:`read_results`."""
    try:
        with file.open("rb") as lines:
            for number, raw in enumerate(lines, 1):
                if raw.endswith(b"\n"):  # otherwise the line is incomplete
                    yield raw, _result(raw, f"{str(file)!r}, line {number}")
    except OSError as error:
        raise ConfigError(
            f"{str(file)!r} cannot be read: {error.strerror or error}", hint="name a file of results"
        ) from None


def _fields(raw: str, number: int) -> dict[str, Any]:
    """The fields of a line of a file of problems. Raises ValueError with a predicate, such as ``has no problem``."""
    value = parse_strictly(raw)
    fields = {"problem": value} if isinstance(value, str) else value
    if not isinstance(fields, dict) or "problem" not in fields:
        raise ValueError("has no problem")
    for key in RESULT_KEYS:
        if key in fields:
            raise ValueError(f"has the key {key!r}, which is reserved for results")
    id = fields.setdefault("id", number)
    if not isinstance(id, str | int) or isinstance(id, bool):
        raise ValueError(f"has the id {id!r}, which is neither a string nor a whole number")
    return fields


def _result(raw: bytes, where: str) -> dict[str, Any]:
    try:
        record = parse_strictly(raw)
        verdict, found = record["verdict"], record["result"]
        ended = verdict not in ("refused", "failed")
        fits = isinstance(found, dict) is ended is (record["failure"] is None)
        if not (fits and verdict in get_args(Verdict) and isinstance(record["settings"], dict)):
            raise ValueError
        if found is not None and not isinstance(found["stopped"], str):
            raise ValueError
        return {"id": record["id"], "problem": record["problem"], **record}
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f"{where} is not a result", hint="name a file that `rksc-tot run` wrote") from None
