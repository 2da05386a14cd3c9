"""The results of ``rksc-tot run``: a line of JSON each, written whole as each search ends, gone on with by ``--resume``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from rksc_tot.cli.output import record_of, strict_json
from rksc_tot.cli.problems import Line, strictly
from rksc_tot.errors import ConfigError, RkscTotError
from rksc_tot.guard import shown
from rksc_tot.outcome import Outcome


class Results:
    """Lines of results, appended to a file.

    A line has the fields of its problem's line, ``result`` (without the tree unless ``trees``) or null, ``failure`` or null, and
    the ``settings`` it was found with. What failed or was cut by a budget of the run is not *done*.

    Parameters
    ----------
    out : Path
    settings : Mapping
        All that results depend on.
    trees : bool
        Whether each tree is written too.
    """

    def __init__(self, out: Path, settings: Mapping[str, Any], trees: bool) -> None:
        self.out = out
        self._settings: dict[str, Any] = strictly(strict_json(settings))
        self._trees = trees
        self._file: IO[bytes] | None = None

    def check_new(self) -> None:
        """Refuse a file that is there, or cannot be made."""
        if self.out.is_file():
            raise ConfigError(f"{str(self.out)!r} is there already", hint="go on with --resume, or name another file")
        folder = self.out.absolute().parent
        if self.out.exists() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise ConfigError(f"{str(self.out)!r} cannot be written", hint="name a file in a folder that is there")

    def go_on(self, lines: Sequence[Line]) -> set[str]:
        """The ids that are done in the file, which is left with their lines only; none where there is no file yet.

        Raises
        ------
        ConfigError
            If it is no file of results, or of other settings or problems.
        """
        if not self.out.is_file():
            self.check_new()
            return set()
        if not os.access(self.out, os.R_OK | os.W_OK):
            raise ConfigError(f"{str(self.out)!r} cannot be written", hint="name a file that can")
        problems = {str(line.fields["id"]): line.fields["problem"] for line in lines}
        done: set[str] = set()
        kept: list[int] = []
        number = 0
        with self.out.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if not raw.endswith(b"\n"):  # it was being written
                    break
                record = self._read(raw, number, problems)
                id = str(record["id"])
                if id not in done and record["failure"] is None and not record["result"].get("cut"):
                    done.add(id)
                    kept.append(number)
        if len(kept) != number:
            self._keep(set(kept))
        return done

    def write(self, outcome: Outcome, line: Line) -> None:
        """Append the line of an outcome, and hand it to the system whole."""
        found = None
        if outcome.result is not None:
            found = {**record_of(outcome.result, tree=self._trees), "cut": outcome.cut}
            for said_elsewhere in ("problem", "settings"):
                del found[said_elsewhere]
        record = {**line.fields, "result": found, "failure": outcome.failure, "settings": self._settings}
        try:
            if self._file is None:
                raise RkscTotError("the results are not open", hint="use them as a context")
            self._file.write(strict_json(record).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise RkscTotError(
                f"{str(self.out)!r} cannot be written: {error.strerror or error}",
                hint="make room, and go on with --resume",
            ) from None

    def __enter__(self) -> Results:
        self._file = self.out.open("ab")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def _read(self, raw: bytes, number: int, problems: Mapping[str, Any]) -> dict[str, Any]:
        where = f"{str(self.out)!r}, line {number}"
        try:
            record = strictly(raw)
            id, problem, settings = str(record["id"]), record["problem"], record["settings"]
            if not (record["failure"] is None) == isinstance(record["result"], dict):
                raise ValueError
            names = [*dict.fromkeys((*self._settings, *settings))]
        except (ValueError, TypeError, KeyError):
            raise ConfigError(f"{where} is no result", hint="name a file this command has written") from None
        for name in names:
            now, then = self._settings.get(name), settings.get(name)
            if now != then:
                raise ConfigError(
                    f"{where} was found with {name} {shown(then)}, not {shown(now)}",
                    hint="give the settings of then, or another --out",
                )
        if id not in problems or problems[id] != problem:
            now = f"is {shown(problems[id])} now" if id in problems else "is not among the problems"
            raise ConfigError(f"{where}: problem {id} ({shown(problem)}) {now}", hint="give the problems of then")
        return dict(record)

    def _keep(self, numbers: set[int]) -> None:
        """Write the file anew with some of its lines; whatever happens, either the old or the new one is there."""
        fresh = self.out.with_name(self.out.name + ".new")
        try:
            with self.out.open("rb") as old, fresh.open("wb") as new:
                new.writelines(raw for number, raw in enumerate(old, 1) if number in numbers)
                new.flush()
                os.fsync(new.fileno())
            fresh.replace(self.out)
        except OSError as error:
            raise ConfigError(
                f"{str(fresh)!r} cannot be written: {error.strerror or error}", hint="make room in its folder"
            ) from None
