"""The results of ``rksc-tot run``: a line of JSON each, written whole as each search ends, gone on with by ``--resume``."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from rksc_tot.api.jsonl import JsonlLine, raw_results, strictly
from rksc_tot.api.outcomes import Outcome, RunProgress
from rksc_tot.api.result import main_reason
from rksc_tot.cli.output import record_of, strict_json
from rksc_tot.core.errors import ConfigError, RkscTotError
from rksc_tot.core.plugins.user_code import named, shown


class Results:
    """Lines of results, appended to a file; as a context, which holds the file for this run alone.

    A line has the fields of its problem's line, its ``verdict``, ``result`` (without the tree unless ``trees``) or null,
    ``failure`` or null, and the ``settings`` it was found with. What failed or was cut by a budget of the run is not *done*.

    Parameters
    ----------
    out : Path
    settings : callable
        Given a problem, all that its result depends on.
    trees : bool
        Whether each tree is written too.

    Raises
    ------
    ConfigError
        On entering, if the file cannot be written or is in use by another run.
    """

    def __init__(self, out: Path, settings: Callable[[Any], Mapping[str, Any]], trees: bool) -> None:
        self.out = out
        self._settings = settings
        self._trees = trees

    def __enter__(self) -> Results:
        try:
            self._at = self.out.resolve()  # a link stays one, whatever is done to the file
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
                hint="name a file in a folder that is there and can be written",
            ) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._made and os.fstat(self._file.fileno()).st_size == 0:
            self._at.unlink(missing_ok=True)
        self._file.close()

    def check_new(self) -> None:
        """Refuse a file that was there."""
        if not self._made:
            raise ConfigError(f"{str(self.out)!r} is there already", hint="go on with --resume, or name another file")

    def go_on(self, lines: Sequence[JsonlLine], earlier: RunProgress) -> set[str]:
        """The ids that are done in the file, which is left with their lines only.

        How they came out is counted in ``earlier``.

        Raises
        ------
        ConfigError
            If it is no file of results, or of other settings or problems.
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

    def write(self, outcome: Outcome, line: JsonlLine) -> Outcome:
        """Append the line of an outcome, and hand it to the system whole; returns what is written.

        That is the outcome, or a failure where JSON cannot hold its result.
        """
        found = None
        if outcome.result is not None:
            found = record_of(outcome.result, tree=self._trees)
            for said_elsewhere in ("problem", "settings"):
                del found[said_elsewhere]
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
            failure = f"the result cannot be written as JSON: {named(error)}"
            return self.write(Outcome(id=outcome.id, problem=outcome.problem, failure=failure), line)
        left = memoryview(text.encode() + b"\n")
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise RkscTotError(
                f"{str(self.out)!r} cannot be written: {error.strerror or error}",
                hint="make room, and go on with --resume",
            ) from None
        return outcome

    def _check(self, record: Mapping[str, Any], number: int, problems: Mapping[str, Any]) -> None:
        """Refuse a line of other settings or problems."""
        where, id, problem = f"{str(self.out)!r}, line {number}", str(record["id"]), record["problem"]
        if id not in problems or problems[id] != problem:
            now = f"is {shown(problems[id])} now" if id in problems else "is not among the problems"
            raise ConfigError(f"{where}: problem {id} ({shown(problem)}) {now}", hint="give the problems of then")
        then, now = record["settings"], strictly(strict_json(self._settings(problem)))
        for name in dict.fromkeys((*now, *then)):
            if now.get(name) != then.get(name):
                raise ConfigError(
                    f"{where} was found with {name} {shown(then.get(name))}, not {shown(now.get(name))}",
                    hint="give the settings of then, or another --out",
                )

    def _keep(self, numbers: set[int]) -> None:
        """Write the file anew with some of its lines; whatever happens, either the old or the new one is there."""
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
                f"{str(self._at.parent)!r} cannot be written: {error.strerror or error}", hint="make room there"
            ) from None

    def _open(self, file: Path) -> FileIO:
        """The file to append to, held until it is closed. Without a buffer: what could not be written is not tried again."""
        opened = file.open("ab", buffering=0)
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free = os.path.samestat(os.fstat(opened.fileno()), file.stat())  # else it was replaced in the meantime
            except BlockingIOError:
                free = False
            except OSError:  # a file system without locks, or the file has just gone
                free = file.exists()
            if not free:
                opened.close()
                raise ConfigError(
                    f"{str(self.out)!r} is in use by another run", hint="wait for it, or name another file"
                )
        return opened


def _ending(record: Mapping[str, Any]) -> tuple[str, str | None]:
    """What ended the search of a line, and why it has no answer."""
    found = record["result"]
    if found is None:
        return "", record["failure"]
    answered = found.get("answer") is not None
    return found["stopped"], None if answered else main_reason(found["stopped"], found.get("rejections") or {})
