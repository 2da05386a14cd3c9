"""Which problems a comparison is run on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from rksc_tot.errors import ConfigError
from rksc_tot.guard import Raised, guarded
from rksc_tot.task import Task


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
    if rows is not None and file is None:
        raise ConfigError(f"--rows {rows} without a file", hint="add --puzzles FILE")
    sources = [name for name, value in given.items() if value]
    if len(sources) != 1:
        said = f"{' and '.join(sources)} are given" if sources else "there is nothing to compare on"
        raise ConfigError(said, hint="give problems, or --puzzles FILE, or --held-out, or --held-out-states")
    if held_out or held_out_states:
        return _held_out("roots" if held_out else "states")
    return _from_file(file, rows) if file else list(problems)


def refuse_repeats(task: Task, problems: Sequence[str]) -> None:
    """Refuse problems that are one and the same to the task: the second search would find KV the first has left.

    A problem the task cannot read is left to fail alone in its search.

    Raises
    ------
    ConfigError
        If two problems have the same prompt.
    """
    seen: dict[str, str] = {}
    for problem in problems:
        try:
            with guarded("prompt"):
                prompt = repr(task.prompt(task.validate(problem)))
        except Raised:
            continue
        if prompt in seen:
            raise ConfigError(f"{problem!r} is the same problem as {seen[prompt]!r}", hint="give each problem once")
        seen[prompt] = problem


def _from_file(file: Path, rows: str | None) -> list[str]:
    from rksc_tot.models.game24_data import read_puzzles

    return [" ".join(map(str, puzzle)) for puzzle in read_puzzles(file, rows)]


def _held_out(which: str) -> list[str]:
    text = (files("rksc_tot.models") / "game24" / "held_out.json").read_text(encoding="utf-8")
    found: list[str] = json.loads(text)[which]
    return found
