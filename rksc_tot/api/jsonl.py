"""Files with a line of JSON each: problems, and the results of ``rksc-tot run``."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rksc_tot.api.outcomes import Problem, Verdict
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.tree import ReasoningTree

OURS = ("verdict", "result", "failure", "settings")  # keys of a results line that are not the problem's
FORM = 'give a line of JSON each: "the problem", or {"problem": …, "id": …}'
SHOWN = 3  # faults of a file that are named
DEEPEST = 100  # lists and objects within each other


@dataclass(frozen=True, slots=True)
class JsonlLine:
    """A problem as its file has it: the keys of its line, ``problem`` and ``id`` among them."""

    number: int
    fields: dict[str, Any]

    @property
    def problem(self) -> Problem:
        """The problem with its id."""
        return Problem(self.fields["problem"], self.fields["id"])


def read_problems(file: str) -> list[JsonlLine]:
    """The lines of a file, ``-``: of stdin; blank lines are passed over.

    Raises
    ------
    ConfigError
        If it cannot be read, holds no problem, or a line is not of the form, has the id of another, or a key of the results.
    """
    name = "stdin" if file == "-" else repr(file)
    try:
        if file == "-" and sys.stdin is None:  # closed by whoever started the program
            raise ConfigError("stdin is closed", hint="give it the problems, or name a file of them")
        text = (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror or error}", hint="name a file of problems") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8: {error.reason} at byte {error.start}", hint=FORM) from None
    lines: list[JsonlLine] = []
    faults: list[str] = []
    seen: dict[str, int] = {}
    for number, raw in enumerate(text.split("\n"), 1):
        if not raw.strip():
            continue
        try:
            line = JsonlLine(number, _fields(raw, number))
            first = seen.setdefault(str(line.fields["id"]), number)
            if first != number:
                raise ValueError(f"has the id {line.fields['id']!r} of line {first}")
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
    """The lines of a results file, as dicts; where a ``result`` has a tree, it is a :class:`~rksc_tot.core.tree.ReasoningTree`.

    The keys are those of the problem's line, and ``verdict`` (see :class:`~rksc_tot.api.outcomes.Outcome`), ``result`` or None,
    ``failure`` or None, ``settings``. A last line that was being written when the run ended is passed over.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a line is no result.
    """
    for _, record in raw_results(Path(file)):
        if record["result"] is not None and "tree" in record["result"]:
            record["result"]["tree"] = ReasoningTree.from_records(record["result"]["tree"])
        yield record


def raw_results(file: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The whole lines of a results file, each as it is and as what it says. Raises what :func:`read_results` raises."""
    try:
        with file.open("rb") as lines:
            for number, raw in enumerate(lines, 1):
                if raw.endswith(b"\n"):  # else it was being written
                    yield raw, _result(raw, f"{str(file)!r}, line {number}")
    except OSError as error:
        raise ConfigError(
            f"{str(file)!r} cannot be read: {error.strerror or error}", hint="name a file of results"
        ) from None


def strictly(raw: str | bytes) -> Any:
    """What a text of JSON says. Raises ValueError, with the end of a sentence, if it is none or nests too deeply.

    NaN and infinite numbers, such as 1e999, are none.
    """
    too_deep = f"is nested more than {DEEPEST} deep"
    try:
        value = json.loads(raw, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError(too_deep) from None
    except ValueError:
        raise ValueError("is no JSON") from None
    level, depth = [value], 0
    while level := [inner for outer in level for inner in _inside(outer)]:
        depth += 1
        if depth > DEEPEST:
            raise ValueError(too_deep)
    return value


def _fields(raw: str, number: int) -> dict[str, Any]:
    """The keys of a line. Raises ValueError with the end of a sentence."""
    value = strictly(raw)
    fields = {"problem": value} if isinstance(value, str) else value
    if not isinstance(fields, dict) or "problem" not in fields:
        raise ValueError("has no problem")
    for key in OURS:
        if key in fields:
            raise ValueError(f"has the key {key!r}, which is one of the results'")
    id = fields.setdefault("id", number)
    if not isinstance(id, str | int) or isinstance(id, bool):
        raise ValueError(f"has the id {id!r}, which is neither a text nor a whole number")
    return fields


def _result(raw: bytes, where: str) -> dict[str, Any]:
    try:
        record = strictly(raw)
        verdict, found = record["verdict"], record["result"]
        ended = verdict not in ("refused", "failed")
        fits = isinstance(found, dict) is ended is (record["failure"] is None)
        if not (fits and verdict in get_args(Verdict) and isinstance(record["settings"], dict)):
            raise ValueError
        if found is not None and not isinstance(found["stopped"], str):
            raise ValueError
        return {"id": record["id"], "problem": record["problem"], **record}
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f"{where} is no result", hint="name a file that `rksc-tot run` has written") from None


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(number)
    return value


def _inside(value: object) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
