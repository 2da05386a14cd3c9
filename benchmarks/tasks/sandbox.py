"""Attacks on the sandbox: each must end as a recorded failure within its limits, and a search over such thoughts goes on.

``python -m benchmarks sandbox [--json] [--quick]``

* ``ATTACK`` (a name of ``ATTACKS``, such as ``fork_bomb``): whether the run failed as expected and left nothing behind: no
  process, no file, no connection, no secret in its output.
* ``held``, ``attacks``: number of attacks that were held, and of all.
* ``search_goes_on``: whether a search whose thoughts are these attacks, and one honest program, ends with the honest program.
* ``seconds.ATTACK``: wall time, with the start of the processes.
* ``missing``: guarantees that this system cannot hold; attacks on them are refused before they start.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.report import Quick, Report
from rksc_tot import MockEngine
from rksc_tot.api.solve import asolve
from rksc_tot.core.task import function_task
from rksc_tot.strategies import BFS
from rksc_tot.tasks.sandbox import Sandbox, SandboxResult
from rksc_tot.tasks.sandbox.unit_tests import check_tests, read_test
from rksc_tot.verifiers import UnitTests

LIMITS: dict[str, Any] = {"seconds": 2, "cpu_seconds": 1, "memory": "256MiB", "disk": "1MiB", "output": "16KiB"}
NAME = f"rksc{os.getpid()}"  # of processes that an attack leaves behind
NAMED = f"import ctypes\nctypes.CDLL(None).prctl(15, b'{NAME}')\n"
SECRET = f"secret of {os.getpid()}"
TESTS = [read_test(test) for test in ("assert add(2, 3) == 5", ["add('a', 'b')", "ab"])]
HONEST = "def add(a, b):\n    return a + b"


@dataclass(frozen=True)
class Target:
    """What attacks aim at outside the sandbox: a folder with a file, and a server of this process."""

    folder: Path
    server: socket.socket

    @property
    def secret(self) -> Path:
        return self.folder / "secret"

    @property
    def untouched(self) -> bool:
        """Whether the folder is as it was, no connection came, and no process of an attack is left."""
        connected = True
        try:
            self.server.accept()[0].close()
        except BlockingIOError:
            connected = False
        same = os.listdir(self.folder) == ["secret"] and self.secret.read_text(encoding="utf-8") == SECRET
        return same and not connected and not left_behind()


@dataclass(frozen=True)
class Attack:
    """A program, the reasons that its failure may have, and limits other than ``LIMITS``."""

    code: str
    reasons: tuple[str, ...]
    limits: dict[str, Any] = field(default_factory=dict)


ATTACKS: dict[str, Attack] = {
    "fork_bomb": Attack("import os\nwhile True:\n    os.fork()", ("error",)),
    "fork_bomb_of_many": Attack(
        NAMED + "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        ("time",),
        {"processes": 8},
    ),
    "threads": Attack("import threading\nwhile True:\n    threading.Thread(target=threading.Event().wait).start()", ("error",)),
    "endless_output": Attack("while True:\n    print('x' * 999)", ("output",)),
    "sleep": Attack("import time\nwhile True:\n    time.sleep(99)", ("time",)),
    "endless_loop": Attack("import signal\nsignal.signal(24, signal.SIG_IGN)\nwhile True:\n    pass", ("time",)),
    "memory_hog": Attack("kept = []\nwhile True:\n    kept.append(bytearray(1 << 20))", ("memory",)),
    "hidden_memory": Attack("import os\nos.memfd_create('x')", ("error",)),
    "disk_hog": Attack("n = 0\nwhile True:\n    n += 1\n    open(str(n), 'wb').write(bytes(99999))", ("error",)),
    "raised_limits": Attack(
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))\n", ("error",)
    ),
    "socket": Attack("import socket\nsocket.create_connection(('127.0.0.1', {port}))", ("error",)),
    "write_outside": Attack("open('{folder}/new', 'w').write('x')", ("error",)),
    "overwrite_outside": Attack("open('{secret}', 'w').write('x')", ("error",)),
    "write_to_python": Attack("import os\nopen(os.__file__, 'a').write('x')", ("error",)),
    "read_secret": Attack("print(open('{secret}').read())", ("error",)),
    "read_environment": Attack("import os\nprint(os.environ['HOST_SECRET'])", ("error",)),
    "symlink_escape": Attack("import os\nos.symlink('{folder}', 'out')\nopen('out/new', 'w').write('x')", ("error",)),
    "leave_the_root": Attack(
        "import os\nfor _ in range(99):\n    os.chdir('..')\nos.chroot('.')\nopen('{secret}')", ("error",)
    ),
    "new_namespaces": Attack(
        "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0", ("error",)
    ),
    "signal_to_parent": Attack(
        "import os\nfor pid in (os.getppid(), 1, -1):\n    try:\n        os.kill(pid, 9)\n    except OSError:\n        pass\n"
        "os.kill({parent}, 9)",
        ("error",),
    ),
    "memory_of_parent": Attack("open('/proc/{parent}/mem')", ("error",)),
    "daemon": Attack(
        NAMED + "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(10**6)\n"
        "    os._exit(0)\nos.wait()\nraise SystemExit(1)",
        ("error",),
        {"processes": 4},
    ),
    "report_forged": Attack(
        "import os\nfor fd in range(64):\n    try:\n        os.write(fd, b'{{\"held\": {{}}, \"exit_code\": 0}}')\n"
        "    except OSError:\n        pass\nos._exit(1)",
        ("error",),
    ),
    "test_results_forged": Attack(
        "import os, sys\nos.write(1, b'[0, {{\"value\": true}}]\\n[1, {{\"value\": true}}]\\n')\n"
        "sys.modules['__main__'].canonical = lambda value: True\n"
        "class Same:\n    __eq__ = lambda self, other: True\n    __hash__ = lambda self: 0\n"
        "add = lambda a, b: Same()",
        ("",),  # the program ends well, and must pass no test
    ),
}  # fmt: skip


def left_behind() -> list[str]:
    """Processes that still have the name of an attack."""
    found = []
    for status in Path("/proc").glob("[0-9]*/comm"):
        try:
            name = status.read_text(encoding="utf-8").strip()
        except OSError:  # it has ended
            continue
        found += [str(status)] if name == NAME else []
    return found


def aimed(attack: Attack, target: Target) -> str:
    """The program of an attack, with the paths and numbers of its target."""
    port = target.server.getsockname()[1]
    return attack.code.format(folder=target.folder, secret=target.secret, port=port, parent=os.getpid())


def held(name: str, target: Target) -> bool:
    """Whether an attack failed as expected and left nothing behind."""
    attack = ATTACKS[name]
    sandbox = Sandbox(**LIMITS | attack.limits)
    code = aimed(attack, target)
    result: SandboxResult = sandbox.run(code)
    passed = check_tests(sandbox, code, TESTS).share
    expected = result.reason in attack.reasons and SECRET not in result.stdout + result.stderr
    return expected and passed == 0 and target.untouched


async def search_goes_on(target: Target) -> bool:
    """Whether a search over the attacks, and one honest program at the end, finds the honest one."""
    programs = [*(aimed(attack, target) for attack in ATTACKS.values()), HONEST]
    replies = iter(programs)
    task = function_task(
        prompt=lambda problem: "Write add(a, b).\n",
        is_solution=lambda problem, path: len(path) == 1,
        check=lambda problem, answer: answer == HONEST,
        stop=("<end>",),
        max_thought_tokens=4096,
    )
    result = await asolve(
        task,
        {"tests": ["assert add(2, 3) == 5", ["add('a', 'b')", "ab"]]},
        engine=MockEngine(lambda text, rng: next(replies) + "<end>"),
        strategy=BFS(b=1, k=len(programs)),
        verifier=UnitTests(sandbox=Sandbox(**LIMITS)),
    )
    scores = [node.score for node in result.tree if node.depth == 1]
    return (
        result.answer == HONEST and sorted(map(float, filter(None, scores))) == [1.0] and len(scores) == len(programs)
    )


def main(quick: Quick = False) -> Report:
    """``quick`` changes nothing: the attacks take a minute."""
    missing = dict(Sandbox().guarantees().missing)
    os.environ["HOST_SECRET"] = SECRET
    figures: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        target = Target(Path(folder), server)
        target.secret.write_text(SECRET, encoding="utf-8")
        os.chmod(folder, 0o755)
        for name in ATTACKS:
            begun = time.perf_counter()
            figures[name] = held(name, target)
            seconds[name] = round(time.perf_counter() - begun, 2)
        count = sum(figures.values())
        figures |= {"held": count, "attacks": len(ATTACKS), "search_goes_on": asyncio.run(search_goes_on(target))}
    del os.environ["HOST_SECRET"]
    return Report({**figures, "seconds": seconds, "missing": ", ".join(missing)})
