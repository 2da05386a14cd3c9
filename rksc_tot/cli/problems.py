"""The problems of ``rksc-tot run``: a line of JSON each."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rksc_tot.errors import ConfigError
from rksc_tot.outcome import Problem

OURS = ("result", "failure", "settings")  # keys of a results line that are not the problem's
FORM = 'give a line of JSON each: "the problem", or {"problem": …, "id": …}'
SHOWN = 3  # faults of a file that are named


@dataclass(frozen=True, slots=True)
class Line:
    """A problem as its file has it: the keys of its line, ``problem`` and ``id`` among them."""

    number: int
    fields: dict[str, Any]

    @property
    def problem(self) -> Problem:
        """The problem with its id."""
        return Problem(self.fields["problem"], self.fields["id"])


def read_problems(file: str) -> list[Line]:
    """The lines of a file, ``-``: of stdin; blank lines are passed over.

    Raises
    ------
    ConfigError
        If it cannot be read, holds no problem, or a line is not of the form, has the id of another, or a key of the results.
    """
    name = "stdin" if file == "-" else repr(file)
    try:
        text = (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror or error}", hint="name a file of problems") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8: {error.reason} at byte {error.start}", hint=FORM) from None
    lines: list[Line] = []
    faults: list[str] = []
    seen: dict[str, int] = {}
    for number, raw in enumerate(text.split("\n"), 1):
        if not raw.strip():
            continue
        try:
            line = Line(number, _fields(raw, number))
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


def strictly(raw: str | bytes) -> Any:
    """What a text of JSON says. Raises ValueError if it is none, NaN and Infinity included."""
    try:
        return json.loads(raw, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _fields(raw: str, number: int) -> dict[str, Any]:
    """The keys of a line. Raises ValueError with the end of a sentence."""
    try:
        value = strictly(raw)
    except ValueError:
        raise ValueError("is no JSON") from None
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


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
