"""Three processes: the launcher makes namespaces, the supervisor is process 1 in them, and the code is its child.

Only the supervisor holds the pipe of the report. It enforces the wall time, and at its end the kernel ends every process in the
namespace. The code cannot signal or trace it: process 1 takes no signals from inside, and it is not dumpable.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from .call_filter import filter_calls
from .file_system import enter
from .system_calls import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    prctl,
    unshare,
)

CODE = "main.py"
_INSIDE = 1000  # the user ID that the code sees
_FIRST_UNUSED = 0x70000000  # user IDs above this one belong to no account
_MOST_OPEN = 64  # open files
_FILES, _PROCESSES = ("reads", "writes"), ("signals", "cleanup")


class Confinement:
    """Which guarantees hold, and by what means.

    Parameters
    ----------
    report : int
        Descriptor of the pipe for the report.
    missing : dict
        Guarantees that a run before did not get, with the reasons. Their steps are left out.
    """

    def __init__(self, report: int, missing: dict[str, str]) -> None:
        self._pipe = report
        self.held: dict[str, str] = {}
        self.missing = missing

    def gain(self, guarantees: tuple[str, ...], means: str, step: Callable[[], None]) -> bool:
        """Take a step. If it fails, its guarantees are missing."""
        try:
            step()
        except OSError as error:
            for guarantee in guarantees:
                self.missing.setdefault(guarantee, f"{means}: {error.strerror or error}")
                self.held.pop(guarantee, None)
            return False
        for guarantee in guarantees:
            if guarantee not in self.missing:
                self.held[guarantee] = f"{self.held[guarantee]}, {means}" if guarantee in self.held else means
        return True

    def report(self, **facts: Any) -> None:
        """Write the report, once."""
        report = {"held": self.held, "missing": self.missing, **facts}
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, json.dumps(report).encode())


def main() -> None:
    """Read the request from standard input and run its code."""
    request = json.load(sys.stdin)
    confinement = Confinement(request["report"], request["missing"])
    _end_with_parent(request["parent"])
    user = _FIRST_UNUSED + os.getpid() if _is_root() else None
    confinement.gain(("time", "memory", "output"), "resource limits", lambda: None)
    if user is not None or confinement.gain(_PROCESSES + _FILES, "user namespace", _new_user_namespace):
        with contextlib.suppress(OSError):  # a second means: the filter refuses all sockets
            unshare(CLONE_NEWNET)
        confinement.gain(_PROCESSES, "process namespace", lambda: unshare(CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS))
        confinement.gain(_FILES, "mount namespace", lambda: unshare(CLONE_NEWNS))
    launcher = os.getpid()
    child = os.fork()
    if child == 0:
        _supervise(request, confinement, launcher, user)
        os._exit(0)
    os.waitpid(child, 0)


def _is_root() -> bool:
    """Whether this process may take any user ID: it is root, and not only in a user namespace."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        return os.geteuid() == 0 and file.read().split() == ["0", "0", "4294967295"]


def _new_user_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    maps = ("setgroups", "deny"), ("gid_map", f"{_INSIDE} {group} 1"), ("uid_map", f"{_INSIDE} {user} 1")
    for name, line in maps:
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(line)


def _end_with_parent(parent: int) -> None:
    """End when the parent process ends. 0: the parent is outside the process namespace."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() not in (parent, 0):
        os._exit(1)


def _supervise(request: dict[str, Any], confinement: Confinement, launcher: int, user: int | None) -> None:
    base, disk = request["base"], request["disk"]
    if "writes" in confinement.missing:
        os.chdir(base)
    elif not confinement.gain(_FILES, "a root of its own", lambda: enter(base, request["folders"], disk)):
        confinement.report()  # the root is half made
        return
    if user is None:
        confinement.gain(("processes",), "resource limits", lambda: None)
    else:
        confinement.gain(("processes",), "a user ID of its own", lambda: _take_user(user))
    _end_with_parent(launcher)  # again, as a change of the user ID revokes it
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    confinement.gain(("network", "memory"), "system call filter", filter_calls)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the kernel drops signals to process 1 that it does not handle
    if set(confinement.missing) - set(request["accept"]):
        confinement.report()
        return
    with open(CODE, "w", encoding="utf-8") as file:
        file.write(request["code"])
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            _start_code(request, own_processes=2 if user is None else 1)
        except OSError as error:
            os.write(2, f"Python cannot be started: {error}\n".encode())
        os._exit(127)
    timed_out = not _ends_within(request["seconds"], child)
    if timed_out:
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    confinement.report(
        exit_code=os.waitstatus_to_exitcode(status),
        timed_out=timed_out,
        seconds=time.monotonic() - started,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
    )
    with contextlib.suppress(ProcessLookupError):  # without a process namespace, this ends the code's session only
        os.killpg(child, signal.SIGKILL)


def _take_user(user: int) -> None:
    os.chown(".", user, user)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _ends_within(seconds: float, child: int) -> bool:
    poll = select.poll()
    poll.register(os.pidfd_open(child), select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _start_code(request: dict[str, Any], own_processes: int) -> None:
    """Become the code: a session and limits of its own, and no descriptors but standard input, output and error."""
    os.setsid()
    with tempfile.TemporaryFile() as file:
        file.write(request["stdin"].encode())
        file.seek(0)
        os.dup2(file.fileno(), 0)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    cpu = request["cpu_seconds"]
    for limit, soft, hard in (
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_AS, request["memory"], request["memory"]),
        (resource.RLIMIT_NPROC, request["processes"] + own_processes, request["processes"] + own_processes),
        (resource.RLIMIT_FSIZE, request["disk"], request["disk"]),
        (resource.RLIMIT_NOFILE, _MOST_OPEN, _MOST_OPEN),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 0, 0),
    ):
        resource.setrlimit(limit, (soft, hard))
    # -I would ignore the fixed hash seed; its other halves are -P -s, and the environment is this one only
    environment = {"PATH": "/usr/bin:/bin", "HOME": os.getcwd(), "TMPDIR": os.getcwd(), "PYTHONHASHSEED": "0"}
    os.execve(request["python"], ["python", "-P", "-s", "-S", "-X", "utf8", CODE], environment)
