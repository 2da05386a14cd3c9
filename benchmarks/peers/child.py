"""Peers with an interpreter and packages of their own: how these are installed, and how such a peer is asked for a search."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.search import PeerProblem, PeerShape, PeerTally, to_json
from rksc_tot.core.errors import RkscTotError

HOME = Path(__file__).parents[2]
LOGS = HOME / ".build" / "peers"
STOPPING_SECONDS = 30


class PeerAbsent(RkscTotError):
    """A peer cannot be run here."""


@dataclass(frozen=True, slots=True)
class PeerRecipe:
    """How an environment is made. ``packages``: what pip installs, in this order. ``bare``: what it then installs without
    requirements; these are installed next, all but ``spared``, which a text model on a CPU does without. ``proof``: a
    distribution and the version it must have.
    """

    name: str
    proof: tuple[str, str]
    packages: tuple[str, ...] = ()
    bare: str = ""
    spared: frozenset[str] = frozenset()

    @property
    def folder(self) -> Path:
        return HOME / ".build" / "peers" / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def ready(self, install: bool) -> Path:
        """The interpreter; made first if it is missing and ``install`` says so.

        Raises
        ------
        PeerAbsent
            If it is missing, or cannot be made.
        """
        if not self._is_there():
            if not install:
                raise PeerAbsent(f"there is no {' '.join(self.proof)} in {self._place}", hint="give --install")
            self._install()
            if not self._is_there():
                raise PeerAbsent(f"pip put no {' '.join(self.proof)} into {self._place}")
        return self.python

    @property
    def _place(self) -> str:
        return str(self.folder.relative_to(HOME))

    def _is_there(self) -> bool:
        package, version = self.proof
        asked = f"from importlib.metadata import version; print(version({package!r}))"
        if not self.python.exists():
            return False
        done = subprocess.run([self.python, "-c", asked], check=False, capture_output=True, text=True)
        return done.stdout.strip() == version

    def _install(self) -> None:
        try:
            subprocess.run([sys.executable, "-m", "venv", self.folder], check=True, stdout=sys.stderr)
            for package in self.packages:
                self._pip(package)
            if self.bare:
                self._pip("--no-deps", self.bare)
                self._pip(*self._requirements())
        except subprocess.CalledProcessError as error:
            raise PeerAbsent(f"{self._place} could not be made: {error}", hint="see what pip said above") from error

    def _requirements(self) -> list[str]:
        asked = f"from importlib.metadata import requires; print(*requires({self.proof[0]!r}), sep='\\n')"
        found = subprocess.run([self.python, "-c", asked], check=True, stdout=subprocess.PIPE, text=True).stdout
        names = {line: re.split(r"[^\w.-]", line, maxsplit=1)[0].lower() for line in found.splitlines()}
        return [line for line, name in names.items() if name not in self.spared]

    def _pip(self, *arguments: str) -> None:
        subprocess.run([self.python, "-m", "pip", "install", *arguments], check=True, stdout=sys.stderr)


class Child:
    """A peer in a process of its own, loaded and ready; it is stopped whenever it is not asked for something.

    Its process group is one of this session: should this process die, the kernel ends and wakes what is stopped in it.

    Parameters
    ----------
    name : str
        Its log is ``.build/peers/NAME.log``.
    python, module : Path, str
        Interpreter, and what it runs: a module that ends in :func:`benchmarks.peers.driver.serve`.
    asked : mapping
        What to load.
    environment : mapping
        Variables it has besides the present ones; the number of threads is not taken over.

    Raises
    ------
    PeerAbsent
        If it does not get ready.
    """

    def __init__(
        self, name: str, python: Path, module: str, asked: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self._log = LOGS / f"{name}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        inherited = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [python, "-m", module, json.dumps(asked)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, cwd=HOME, env=inherited | dict(environment), process_group=0,
            )  # fmt: skip
        self.told = self._answer()
        self._signal(signal.SIGSTOP)

    @property
    def process(self) -> int:
        """Its number, and that of its process group."""
        return self._process.pid

    def search(self, problem: PeerProblem, shape: PeerShape) -> PeerTally:
        """What one search did there."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps(to_json(shape, problem)) + "\n")
        self._process.stdin.flush()
        tally = PeerTally(**self._answer())
        self._signal(signal.SIGSTOP)
        return tally

    def close(self) -> None:
        """End it and whatever it has started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._signal(signal.SIGCONT)
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOPPING_SECONDS)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["nothing"]
            raise PeerAbsent(f"{self.name} ended: {said[-1]}", hint=f"see {self.name}.log in .build/peers")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, number)
