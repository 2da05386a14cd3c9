"""Write the results of ``rksc-tot run`` as JSON lines, and resume such a file (``api/jsonl_reader.py`` reads it)."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from rksc_tot.api.jsonl_reader import ProblemLine, raw_results
from rksc_tot.api.outcomes import Outcome, RunProgress
from rksc_tot.api.result import main_reason
from rksc_tot.cli.output import record_of, strict_json
from rksc_tot.core.errors import ConfigError, RkscTotError
from rksc_tot.core.plugins.strict_json import parse_strictly
from rksc_tot.core.plugins.user_code import error_text, shown


class ResultsWriter:
    """Appends results to a file. As a context it locks the file against other runs.

    A line has the fields of its problem's line, the ``verdict``, the ``result`` or null, the ``failure`` or null, and the
    ``settings`` of the search. Problems with the verdicts ``failed`` and ``cut`` are not *done*: a resumed run repeats them.

    Parameters
    ----------
    out : Path
    settings : callable
        Maps a problem to all settings that its result depends on.
    trees : bool
        Whether ``result`` includes the tree.

    Raises
    ------
    ConfigError
        On entering, if the file cannot be written or is in use by another run.
    """

    def __init__(self, out: Path, settings: Callable[[Any], Mapping[str, Any]], trees: bool) -> None:
        self.out = out
        self._settings = settings
        self._trees = trees

    def __enter__(self) -> ResultsWriter:
        try:
            self._at = self.out.resolve()  # replacing the file keeps a symbolic link
            if self._at.exists() and not self._at.is_file():
                raise OSError("not a file")
            try:
                self._at.open("xb").close()
                self._made = True
            except FileExistsError:
                self._made = False
            self._file = self._open(self._at)
        except (OSError, RuntimeError) as error:
            raise ConfigError(
                f"{str(self.out)!r} cannot be written: {getattr(error, 'strerror', None) or error}",
                hint="name a file in an existing, writable folder",
            ) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._made and os.fstat(self._file.fileno()).st_size == 0:
            self._at.unlink(missing_ok=True)
        self._file.close()

    def check_new(self) -> None:
        """Raise ConfigError if the file existed before this run."""
        if not self._made:
            raise ConfigError(f"{str(self.out)!r} already exists", hint="add --resume, or name another file")

    def resume(self, lines: Sequence[ProblemLine], earlier: RunProgress) -> set[str]:
        """The ids of the problems that are done. Counts them in ``earlier``, and removes all other lines from the file.

        Raises
        ------
        ConfigError
            If the file is not a results file, or its settings or problems differ from those of this run.
        """
        problems = {str(line.fields["id"]): line.fields["problem"] for line in lines}
        done: set[str] = set()
        kept, size = set[int](), 0
        for number, (raw, record) in enumerate(raw_results(self.out), 1):
            self._check(record, number, problems)
            id = str(record["id"])
            if id not in done and record["verdict"] not in ("failed", "cut"):
                done.add(id)
                kept.add(number)
                size += len(raw)
                earlier.count(record["verdict"], *_ending(record))
        if size != self._at.stat().st_size:
            self._keep(kept)
        return done

    def write(self, outcome: Outcome, line: ProblemLine) -> Outcome:
        """Append the line of an outcome. Returns the outcome that was written.

        An outcome whose result JSON cannot represent is written as a failure.

        Raises
        ------
        RkscTotError
            If the file cannot be written.
        """
        found = None
        if outcome.result is not None:
            found = record_of(outcome.result, tree=self._trees)
            for key in ("problem", "settings"):  # keys of the line itself
                del found[key]
        record = {
            **line.fields,
            "verdict": outcome.verdict,
            "result": found,
            "failure": outcome.failure,
            "settings": self._settings(outcome.problem),
        }
        try:
            text = strict_json(record)
        except (ValueError, TypeError, RecursionError) as error:
            if outcome.result is None:
                raise
            failure = f"the result cannot be written as JSON: {error_text(error)}"
            return self.write(Outcome(id=outcome.id, problem=outcome.problem, failure=failure), line)
        left = memoryview(text.encode() + b"\n")
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise RkscTotError(
                f"{str(self.out)!r} cannot be written: {error.strerror or error}",
                hint="free some disk space, then run again with --resume",
            ) from None
        return outcome

    def _check(self, record: Mapping[str, Any], number: int, problems: Mapping[str, Any]) -> None:
        """Raise ConfigError if a line has another problem or other settings than this run."""
        where, id, problem = f"{str(self.out)!r}, line {number}", str(record["id"]), record["problem"]
        if id not in problems or problems[id] != problem:
            now = f"is {shown(problems[id])} now" if id in problems else "is not among the problems"
            raise ConfigError(
                f"{where}: problem {id} ({shown(problem)}) {now}", hint="give the same problems as before"
            )
        then, now = record["settings"], parse_strictly(strict_json(self._settings(problem)))
        if (found := _difference(then, now)) is not None:
            name, before, given = found
            raise ConfigError(
                f"{where} has {name} {shown(before)}, not {shown(given)}",
                hint="give the same settings as before, or another --out",
            )

    def _keep(self, numbers: set[int]) -> None:
        """Replace the file by one with these lines only, atomically: a crash leaves the old file or the new one."""
        fresh: Path | None = None
        try:
            handle, name = tempfile.mkstemp(prefix=".rksc-tot-", dir=self._at.parent)
            fresh = Path(name)
            with self._at.open("rb") as old, open(handle, "wb") as new:
                new.writelines(raw for number, raw in enumerate(old, 1) if number in numbers)
                new.flush()
                os.fsync(new.fileno())
            fresh.chmod(self._at.stat().st_mode & 0o777)
            held = self._open(fresh)
            fresh.replace(self._at)
            self._file.close()
            self._file = held
        except OSError as error:
            if fresh is not None:
                fresh.unlink(missing_ok=True)
            raise ConfigError(
                f"{str(self._at.parent)!r} cannot be written: {error.strerror or error}", hint="free some disk space"
            ) from None

    def _open(self, file: Path) -> FileIO:
        """Open the file for appending, and lock it. It is unbuffered, so that a failed write is not repeated on close."""
        opened = file.open("ab", buffering=0)
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free = os.path.samestat(
                    os.fstat(opened.fileno()), file.stat()
                )  # False if the file was replaced meanwhile
            except BlockingIOError:
                free = False
            except OSError:  # no locks on this file system, or the file was deleted
                free = file.exists()
            if not free:
                opened.close()
                raise ConfigError(
                    f"{str(self.out)!r} is in use by another run", hint="wait until it ends, or name another file"
                )
        return opened


def _difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The name of the first setting that differs, such as ``rows examples``, with both values; None if all are the same."""
    for name in dict.fromkeys((*now, *then)):
        before, given = then.get(name), now.get(name)
        if before != given:
            if (
                isinstance(before, Mapping)
                and isinstance(given, Mapping)
                and "name" not in before.keys() | given.keys()
            ):
                inside, before, given = _difference(before, given) or ("", before, given)
                name = f"{name} {inside}"
            return name, before, given
    return None


def _ending(record: Mapping[str, Any]) -> tuple[str, str | None]:
    """Why the search of a line stopped, and why it has no answer, None if it has one."""
    found = record["result"]
    if found is None:
        return "", record["failure"]
    answered = found.get("answer") is not None
    return found["stopped"], None if answered else main_reason(found["stopped"], found.get("rejections") or {})
