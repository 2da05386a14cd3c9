"""One run of code in the sandbox, seen from the searching process: starts the launcher, reads its pipes, ends it."""

from __future__ import annotations

import json
import os
import platform
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from rksc_tot.tasks.sandbox.guarantees import GUARANTEES, Guarantees

Reason = Literal["", "error", "signal", "time", "memory", "output", "refused", "lost"]

_LAUNCHER = "import sys; sys.path.append(sys.argv[1]); from launcher.main import main; main()"
_GRACE = 120.0  # seconds that starting and ending the processes may take on a busy machine
_CHUNK = 1 << 16
_LONGEST = 200  # characters of a detail
_REPORT = 2  # its place among the pipes


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """How a run ended.

    Attributes
    ----------
    reason : str
        Empty if the code ended with status 0. ``error``: another status, such as after an exception. ``signal``: ended by a
        signal, such as after a crash. ``time``, ``memory``, ``output``: a limit was reached. ``refused``: the code was not
        started, as the system cannot hold all guarantees. ``lost``: the sandbox ended without a report.
    detail : str
        One sentence on the reason.
    stdout, stderr : str
        What the code wrote, up to the limit.
    exit_code : int or None
        Status of the code's process; negative: the number of the signal that ended it.
    seconds, cpu_seconds : float
        Wall time and processor time of the code.
    """

    reason: Reason
    detail: str = ""
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the code ended with status 0 and within its limits."""
        return not self.reason


class SandboxRun:
    """One run. Call :meth:`result` once; :meth:`cancel` may be called from another thread at any time.

    Parameters
    ----------
    settings : Mapping
        The fields of a ``Sandbox``.
    code, stdin : str
        The program, and its standard input.
    """

    def __init__(self, settings: Mapping[str, Any], code: str, stdin: str) -> None:
        self._settings, self._code, self._stdin = settings, code, stdin
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False
        self.guarantees = Guarantees({}, {})
        """What the system held in this run, known after the result."""

    def cancel(self) -> None:
        """End the processes of the run."""
        with self._lock:
            self._cancelled = True
            if self._process is not None:
                _end(self._process)

    def result(self) -> SandboxResult:
        """Run the code to its end."""
        if reason := _unsupported():
            self.guarantees = Guarantees({}, dict.fromkeys(GUARANTEES, reason))
            return SandboxResult("refused", reason)
        try:
            with tempfile.TemporaryDirectory(prefix="rksc_tot-sandbox-", ignore_cleanup_errors=True) as base:
                result = self._judge(*self._run(base))
                if result.reason == "refused" and not self.guarantees.refusal(self._settings["accept"]):
                    result = self._judge(*self._run(base))  # a step failed that must not be tried again
                return result
        except OSError as error:
            return SandboxResult("lost", f"the sandbox cannot be started: {error}")

    def _run(self, base: str) -> tuple[list[bytes], bool]:
        """What was written to standard output, standard error and the report; and whether it was too much."""
        reading, writing = os.pipe()
        with open(reading, "rb") as report:
            try:
                process = self._start(writing)
            finally:
                os.close(writing)
            with process:  # closes the pipes and waits
                try:
                    request = {
                        **self._settings, "code": self._code, "stdin": self._stdin, "base": base, "report": writing,
                        "parent": os.getpid(), "python": _python(),
                        "folders": [*self._settings["folders"], sys.base_prefix], "missing": {**self.guarantees.missing},
                    }  # fmt: skip
                    assert process.stdin is not None
                    with suppress(BrokenPipeError), process.stdin as pipe:
                        pipe.write(json.dumps(request).encode())
                    return self._read([process.stdout, process.stderr, report])
                finally:
                    with self._lock:
                        _end(process)
                        self._process = None

    def _start(self, report: int) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._cancelled:
                raise OSError("the run was cancelled")
            self._process = subprocess.Popen(
                [_python(), "-I", "-S", "-c", _LAUNCHER, str(Path(__file__).parent)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                pass_fds=[report], cwd="/", env={}, start_new_session=True,
            )  # fmt: skip
            return self._process

    def _read(self, pipes: Sequence[IO[bytes] | None]) -> tuple[list[bytes], bool]:
        """Read all pipes to their ends, to the limit of output, or to the last moment at which the supervisor may report."""
        written = [b"" for _ in pipes]
        latest = time.monotonic() + self._settings["seconds"] + _GRACE
        with selectors.DefaultSelector() as selector:
            for at, pipe in enumerate(pipes):
                assert pipe is not None
                selector.register(pipe, selectors.EVENT_READ, at)
            while selector.get_map() and (left := latest - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    chunk = os.read(key.fd, _CHUNK)
                    written[key.data] += chunk
                    if not chunk:
                        selector.unregister(key.fileobj)
                    elif len(written[key.data]) > self._settings["output"] and key.data != _REPORT:
                        return written, True
        return written, False

    def _judge(self, written: Sequence[bytes], overflown: bool) -> SandboxResult:
        most = self._settings["output"]
        stdout, stderr = (text[:most].decode(errors="replace") for text in written[:_REPORT])
        if overflown:
            return SandboxResult("output", f"it wrote more than {most} bytes", stdout, stderr)
        if not written[_REPORT]:
            return SandboxResult("lost", "the sandbox ended without a report", stdout, stderr)
        report = json.loads(written[_REPORT])
        self.guarantees = Guarantees(report["held"], report["missing"])
        if "exit_code" not in report:
            return SandboxResult("refused", self.guarantees.refusal(self._settings["accept"]))
        reason, detail = self._reason(report, stderr)
        return SandboxResult(
            reason, detail, stdout, stderr, report["exit_code"], report["seconds"], report["cpu_seconds"]
        )

    def _reason(self, report: Mapping[str, Any], stderr: str) -> tuple[Reason, str]:
        code, limit = report["exit_code"], self._settings
        if report["timed_out"]:
            return "time", f"it ran longer than {limit['seconds']:g} s"
        if code == -signal.SIGXCPU or (code == -signal.SIGKILL and report["cpu_seconds"] >= limit["cpu_seconds"]):
            return "time", f"it used more than {limit['cpu_seconds']} s of processor time"
        last = stderr.rstrip().rpartition("\n")[2]
        if code > 0 and last.startswith("MemoryError"):
            return "memory", f"it wanted more than {limit['memory']} bytes"
        if code > 0:
            return "error", last[:_LONGEST] or f"it ended with status {code}"
        return ("signal", f"signal {-code} ended it") if code else ("", "")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End launcher and supervisor, and with them every process of the code."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _python() -> str:
    """The interpreter behind the virtual environment, if there is one: only its folder is shown to the code."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _unsupported() -> str:
    """Why this system cannot confine code at all, empty if it may."""
    if sys.platform != "linux":
        return f"the sandbox needs namespaces and seccomp of Linux, and this is {platform.system()} - run it on Linux"
    if Path.home().is_relative_to(sys.base_prefix):
        return f"the folder of Python, {sys.base_prefix}, holds the home folder - install Python in a folder of its own"
    return ""
