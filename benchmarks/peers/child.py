"""Peers with their own interpreter and packages: installation, and searches in a child process."""

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
    """A peer cannot run here."""


@dataclass(frozen=True, slots=True)
class PeerRecipe:
    """How to create an environment. ``packages``: packages that pip installs first, in this order. ``bare``: a package
    installed next without its requirements. These are installed last, except for ``spared``, which a text model on a CPU does
    not need. ``proof``: a distribution and the version it must have.
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
        """The interpreter. A missing environment is created if ``install`` is set.

        Raises
        ------
        PeerAbsent
            If the environment is missing, or cannot be created.
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
            raise PeerAbsent(
                f"{self._place} could not be created: {error}", hint="see the output of pip above"
            ) from error

    def _requirements(self) -> list[str]:
        asked = f"from importlib.metadata import requires; print(*requires({self.proof[0]!r}), sep='\\n')"
        found = subprocess.run([self.python, "-c", asked], check=True, stdout=subprocess.PIPE, text=True).stdout
        names = {line: re.split(r"[^\w.-]", line, maxsplit=1)[0].lower() for line in found.splitlines()}
        return [line for line, name in names.items() if name not in self.spared]

    def _pip(self, *arguments: str) -> None:
        subprocess.run([self.python, "-m", "pip", "install", *arguments], check=True, stdout=sys.stderr)


class Child:
    """A peer in its own process, loaded and ready. The process is stopped (SIGSTOP) between searches.

    Its process group belongs to this session. If this process dies, the kernel ends and wakes stopped processes of the group.

    Parameters
    ----------
    name : str
        Its log is ``.build/peers/NAME.log``.
    python, module : Path, str
        The interpreter, and the module that it runs, which ends in :func:`benchmarks.peers.driver.serve`.
    asked : mapping
        Arguments of the peer's ``load``.
    environment : mapping
        Additional environment variables. The number of threads is not inherited.

    Raises
    ------
    PeerAbsent
        If the peer does not become ready.
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
        """Id of the process and of its process group."""
        return self._process.pid

    def search(self, problem: PeerProblem, shape: PeerShape) -> PeerTally:
        """Run one search in the process."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps(to_json(shape, problem)) + "\n")
        self._process.stdin.flush()
        tally = PeerTally(**self._answer())
        self._signal(signal.SIGSTOP)
        return tally

    def close(self) -> None:
        """End the process and all processes it has started."""
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
