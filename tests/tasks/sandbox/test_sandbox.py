import asyncio
import os
import sys
import threading

import pytest

from rksc_tot.core.errors import ConfigError
from rksc_tot.tasks.sandbox import GUARANTEES, Sandbox, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox runs on Linux only")


PATIENT = {"seconds": 120, "cpu_seconds": 60}


@pytest.fixture(scope="module")
def sandbox():
    sandbox = Sandbox(**PATIENT)
    if missing := sandbox.guarantees().missing:
        pytest.skip(f"this system cannot hold {missing}")
    return sandbox


def test_the_result_has_what_the_program_wrote(sandbox):
    result = sandbox.run("import sys\nprint(input()[::-1])\nprint('ö', file=sys.stderr)", stdin="stressed")
    assert (result.ok, result.reason, result.stdout, result.stderr) == (True, "", "desserts\n", "ö\n")
    assert result.exit_code == 0
    assert result.seconds > 0


@pytest.mark.parametrize(
    ("code", "reason", "detail"),
    [
        ("1 / 0", "error", "ZeroDivisionError: division by zero"),
        ("def f(:", "error", "SyntaxError"),
        ("raise SystemExit(3)", "error", "status 3"),
        ("import os; os.abort()", "signal", "signal 6"),
        ("x = bytearray(1 << 40)", "memory", "more than 536870912 bytes"),
        ("print('x' * 100_000)", "output", "more than 65536 bytes"),
        ("import sys; sys.stderr.write('x' * 100_000)", "output", "more than 65536 bytes"),
        ("open('a', 'wb').write(bytes(1 << 25))", "error", "OSError"),
        ("for n in range(99): open(str(n), 'wb').write(bytes(1 << 20))", "error", "No space left"),
        ("import threading; threading.Thread(target=print).start()", "error", "can't start new thread"),
        ("import numpy", "error", "ModuleNotFoundError"),
        ("x = '\\0'\n\0", "error", "null bytes"),
    ],
)
def test_each_way_to_fail_has_a_reason_and_a_sentence(sandbox, code, reason, detail):
    result = sandbox.run(code)
    assert not result.ok
    assert result.reason == reason
    assert detail in result.detail


@pytest.mark.parametrize(
    ("limits", "code", "detail"),
    [
        ({"seconds": 0.2}, "import time; time.sleep(10**6)", "longer than 0.2 s"),
        ({"cpu_seconds": 1}, "while True: pass", "1 s of processor time"),
        (
            {"cpu_seconds": 1},
            "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
            "1 s of processor time",
        ),
    ],
)
def test_time_limits_end_the_program(sandbox, limits, code, detail):
    result = Sandbox(**PATIENT | limits).run(code)
    assert result.reason == "time"
    assert detail in result.detail


def test_output_up_to_the_limit_is_kept(sandbox):
    result = Sandbox(output=10, **PATIENT).run("print('0123456789' * 9)")
    assert result.stdout == "0123456789"


def test_the_program_sees_no_environment_and_no_files_of_the_user(sandbox, monkeypatch, tmp_path):
    monkeypatch.setenv("SECRET", "token")
    (tmp_path / "secret").write_text("token", encoding="utf-8")
    code = f"""
import os, sys
print(sorted(os.environ), sys.argv, os.listdir("."), os.path.exists({str(tmp_path)!r}))
print([name for name in ("/etc", "/home", "/proc", "/sys", "/var") if os.path.exists(name)])
print(sorted(os.listdir("/dev")))
"""
    lines = sandbox.run(code).stdout.splitlines()
    assert lines[0].replace("'LC_CTYPE', ", "") == (  # which Python adds itself
        "['HOME', 'PATH', 'PYTHONHASHSEED', 'TMPDIR'] ['main.py'] ['main.py'] False"
    )
    assert lines[1:] == ["[]", "['null', 'random', 'urandom', 'zero']"]


def test_a_folder_that_is_named_can_be_read_and_not_written(sandbox, tmp_path):
    (tmp_path / "words").write_text("abc", encoding="utf-8")
    tmp_path.chmod(0o755)  # a sandbox of root runs the code as another user
    code = f"print(open({str(tmp_path / 'words')!r}).read())\nopen({str(tmp_path / 'new')!r}, 'w')"
    result = Sandbox(folders=(str(tmp_path),), **PATIENT).run(code)
    assert result.stdout == "abc\n"
    assert "Read-only file system" in result.detail
    assert os.listdir(tmp_path) == ["words"]


def test_several_processes_are_allowed_when_asked_for(sandbox):
    code = """
import os, threading
for _ in range(3):
    if os.fork() == 0:
        threading.Event().wait()
try:
    os.fork()
except OSError:
    print("the fifth is refused")
"""
    result = Sandbox(processes=4, **PATIENT).run(code)
    assert result.stdout == "the fifth is refused\n"
    assert result.ok  # the three children ended with it


def test_sets_are_in_the_same_order_in_every_run(sandbox):
    runs = {sandbox.run("print(set('abcdefgh'))").stdout for _ in range(3)}
    assert len(runs) == 1


async def test_runs_in_an_event_loop_go_side_by_side_and_bounded():
    sandbox = Sandbox(concurrency=2, **PATIENT)
    results = await asyncio.gather(*[sandbox.arun(f"print({n})") for n in range(5)])
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(5)]


async def test_a_cancelled_run_ends_its_processes(sandbox, monkeypatch):
    started = threading.Event()
    start = run.SandboxRun._start

    def signalling(self, report):
        process = start(self, report)
        started.process = process
        started.set()
        return process

    monkeypatch.setattr(run.SandboxRun, "_start", signalling)
    task = asyncio.create_task(sandbox.arun("import time; time.sleep(10**6)"))
    await asyncio.to_thread(started.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(started.process.wait)
    assert started.process.returncode < 0


def test_the_report_names_the_means_of_every_guarantee(sandbox):
    held = sandbox.guarantees().held
    assert set(held) == set(GUARANTEES)
    assert "mount namespace" in held["writes"]


@pytest.fixture
def without_mounts(monkeypatch):
    monkeypatch.setattr(run, "_LAUNCHER", run._LAUNCHER.replace("main()", BROKEN_MOUNTS))


BROKEN_MOUNTS = """
import launcher.main
def enter(*args):
    raise OSError(1, "no mounts here")
launcher.main.enter = enter
main()
"""


def test_code_is_refused_if_a_guarantee_is_missing(sandbox, without_mounts):
    result = Sandbox().run("print('ran')")
    assert (result.reason, result.stdout) == ("refused", "")
    assert result.detail == (
        "the sandbox cannot hold reads, writes: a root of its own: no mounts here - accept the weaker sandbox by name, "
        "Sandbox(accept=['reads', 'writes']), or run where the system allows it (docs/tools.md)"
    )
    assert Sandbox(accept=("reads",)).run("print('ran')").reason == "refused"


def test_a_weaker_sandbox_runs_if_it_is_accepted_by_name(sandbox, without_mounts):
    weaker = Sandbox(accept=("reads", "writes"), **PATIENT)
    assert weaker.guarantees().missing == dict.fromkeys(["reads", "writes"], "a root of its own: no mounts here")
    result = weaker.run("import os; print(os.listdir('.'))")
    if "cannot be started" not in result.stderr:  # Python is in a folder that other users may not read
        assert result.stdout == "['main.py']\n"


def test_systems_other_than_linux_are_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(run.sys, "platform", "darwin")
    monkeypatch.setattr(run.platform, "system", lambda: "Darwin")
    result = Sandbox(accept=GUARANTEES).run("print('ran')")
    assert result.reason == "refused"
    assert "needs namespaces and seccomp of Linux, and this is Darwin" in result.detail
    assert set(Sandbox().guarantees().missing) == set(GUARANTEES)


@pytest.mark.parametrize("wrong", [{"memory": "much"}, {"seconds": 0}, {"accept": ("everything",)}, {"disk": -1}])
def test_limits_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError):
        Sandbox(**wrong)


def test_sizes_are_given_in_words():
    assert Sandbox(memory="1GiB").memory == 1 << 30
