"""Which problems a comparison is run on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from rksc_tot.errors import ConfigError


def choose_problems(
    problems: Sequence[str] = (),
    file: Path | None = None,
    rows: str | None = None,
    held_out: bool = False,
    held_out_states: bool = False,
) -> list[str]:
    """The problems of exactly one source: given one by one, rows of a csv, or a set the embedded model never saw.

    Raises
    ------
    ConfigError
        If there is no source or more than one, or the file has no such rows.
    """
    given = {
        "problems": problems,
        "--puzzles": file,
        "--held-out": held_out,
        "--held-out-states": held_out_states,
    }
    sources = [name for name, value in given.items() if value]
    if len(sources) != 1:
        said = f"{' and '.join(sources)} are given" if sources else "there is nothing to compare on"
        raise ConfigError(said, hint="give problems, or --puzzles FILE, or --held-out, or --held-out-states")
    if rows is not None and file is None:
        raise ConfigError(f"--rows {rows} without a file", hint="add --puzzles FILE")
    if held_out or held_out_states:
        return _held_out("roots" if held_out else "states")
    return _from_file(file, rows or "1-1000000") if file else list(problems)


def _from_file(file: Path, rows: str) -> list[str]:
    from rksc_tot.models.game24_data import read_puzzles

    try:
        return [" ".join(map(str, puzzle)) for puzzle in read_puzzles(file, rows)]
    except (ValueError, TypeError, AttributeError, OSError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{str(file)!r} cannot be read: {error}", hint="give a csv with columns Rank and Puzzles"
        ) from None


def _held_out(which: str) -> list[str]:
    text = (files("rksc_tot.models") / "game24" / "held_out.json").read_text(encoding="utf-8")
    found: list[str] = json.loads(text)[which]
    return found
