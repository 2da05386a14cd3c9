"""Collects the problems of comparisons and calibrations: from arguments, files or built-in sets."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from rksc_tot.api.jsonl_reader import read_problems
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, shown
from rksc_tot.core.task import Task
from rksc_tot.core.task.problem import own_copy


def choose_problems(
    problems: Sequence[str] = (),
    file: Path | None = None,
    rows: str | None = None,
    held_out: bool = False,
    held_out_states: bool = False,
    task: Task | None = None,
) -> list[str]:
    """The problems of a comparison, from exactly one source: arguments, rows of a csv, or a held-out set.

    Held-out sets are those of the task's embedded model. ``task``: by default the game of 24.

    Raises
    ------
    ConfigError
        If there is not exactly one source, the file lacks the rows, or the task has no such held-out set.
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
        found = f"{' and '.join(sources)} are given together" if sources else "there are no problems to compare on"
        raise ConfigError(found, hint="give problems, or --puzzles FILE, or --held-out, or --held-out-states")
    if held_out or held_out_states:
        return _held_out("game24" if task is None else task.name, "roots" if held_out else "states")
    return _from_file(file, rows) if file else list(problems)


def refuse_repeats(task: Task, problems: Sequence[Any]) -> None:
    """Check that no two problems have the same prompt, as the second search would reuse KV of the first.

    A problem that the task refuses is skipped; its own search reports the error.

    Raises
    ------
    ConfigError
        If two problems have the same prompt.
    """
    seen: dict[str, Any] = {}
    for problem in problems:
        try:
            with calling_user_code("prompt"):
                prompt = repr(task.prompt(task.validate(own_copy(problem))))
        except UserCodeError:
            continue
        if prompt in seen:
            raise ConfigError(
                f"{shown(problem)} is the same problem as {shown(seen[prompt])}", hint="give each problem once"
            )
        seen[prompt] = problem


def _from_file(file: Path, rows: str | None) -> list[str]:
    from rksc_tot.tasks.game24.puzzles import read_puzzles

    return [" ".join(map(str, puzzle)) for puzzle in read_puzzles(file, rows)]


def _held_out(task: str, which: str) -> list[str]:
    """A set of the file ``held_out.json`` beside the weights of a task's embedded model."""
    weights = files("rksc_tot.tasks.embedded") / "weights"
    sets = {"game24": files("rksc_tot.tasks.game24") / "weights" / "held_out.json"}
    sets |= {folder.name: folder / "held_out.json" for folder in weights.iterdir()}
    found: dict[str, list[str]] = json.loads(sets[task].read_text(encoding="utf-8")) if task in sets else {}
    if which not in found:
        option, known = ("--held-out", ", ".join(sorted(sets))) if which == "roots" else ("--held-out-states", "game24")
        raise ConfigError(
            f"the task {task!r} has no problems for {option}", hint=f"name problems, or a task with such a set: {known}"
        )
    return found[which]


def calibration_problems(
    problems: Sequence[str] = (),
    file: Path | None = None,
    training: bool = False,
    without: Path | None = None,
    rows: str | None = None,
    most: int | None = None,
    seed: int = 0,
) -> list[str]:
    """The problems of a calibration or a fit, from exactly one source.

    Parameters
    ----------
    problems : sequence of str
        Problems given as arguments.
    file : Path, optional
        A file with a problem on each line; empty lines are skipped. A file ``*.jsonl`` has the form of ``rksc-tot run``.
    training : bool
        Use the game-of-24 puzzles outside all held-out sets, see :func:`training_puzzles` for ``without`` and ``rows``.
    most : int, optional
        Use a random sample of at most that many problems.
    seed : int
        Seed of the sample.

    Raises
    ------
    ConfigError
        If there is not exactly one source, or the file cannot be read.
    """
    given = {"problems": problems, "--problems": file, "--training-puzzles": training}
    sources = [name for name, value in given.items() if value]
    if len(sources) != 1:
        found_sources = f"{' and '.join(sources)} are given together" if sources else "there are no problems"
        raise ConfigError(found_sources, hint="give problems, or --problems FILE, or --training-puzzles")
    if (without or rows) and not training:
        raise ConfigError("--without and --rows are given without --training-puzzles", hint="add it, or leave them out")
    found = training_puzzles(without, rows) if training else _lines(file) if file else list(problems)
    if most is not None and most < len(found):
        found = random.Random(seed).sample(found, most)
    return found


def training_puzzles(without: Path | None = None, rows: str | None = None) -> list[str]:
    """All game-of-24 puzzles with numbers 1..13 outside the held-out sets of the embedded model.

    ``without``: a ranked csv of further puzzles to leave out; with ``rows``, only those of these ranks.
    """
    from rksc_tot.tasks.game24.puzzles import all_puzzles, read_puzzles

    left_out = {*choose_problems(held_out=True), *choose_problems(held_out_states=True)}
    if without is not None:
        left_out.update(" ".join(map(str, puzzle)) for puzzle in read_puzzles(without, rows))
    return [text for puzzle in all_puzzles() if (text := " ".join(map(str, puzzle))) not in left_out]


def _lines(file: Path) -> list[str]:
    if file.suffix == ".jsonl":
        return [line.fields["problem"] for line in read_problems(str(file))]
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{str(file)!r} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise ConfigError(f"{str(file)!r} holds no problem", hint="write one problem on each line")
    return found
