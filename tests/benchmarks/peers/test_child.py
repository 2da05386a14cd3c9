"""A peer in its own process serves searches, is stopped between them, and leaves no process behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.peers.child import Child, PeerAbsent, PeerRecipe
from benchmarks.peers.search import PeerProblem, PeerShape, PeerTally
from tests.patience import PATIENCE

MODULE = "tests.benchmarks.counting_peer"
SHAPE, PROBLEM = PeerShape(3, 2, 4, 2, 2, 3), PeerProblem([1, 2, 3], [7, 8], ([1], [2]))


def state(process):
    """The kernel's letter for the state of a process; None if it has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


def wait_for(condition):
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def child(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.child.LOGS", tmp_path)
    found = Child("counting", Path(sys.executable), MODULE, {}, {})
    yield found
    found.close()


def test_a_child_serves_several_searches_while_libraries_print(child):
    assert child.told == {"version": "1"}
    for _ in range(2):
        assert child.search(PROBLEM, SHAPE).shape == PeerTally.expected(SHAPE).shape


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_a_child_is_stopped_between_searches_and_ends_after_the_last(child):
    assert wait_for(lambda: state(child.process) == "T")
    child.search(PROBLEM, SHAPE)
    assert wait_for(lambda: state(child.process) == "T")
    child.close()
    assert state(child.process) is None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_a_child_ends_with_a_killed_benchmark(tmp_path):
    script = (
        "import sys, time; from pathlib import Path; import benchmarks.peers.child as p\n"
        f"p.LOGS = Path({str(tmp_path)!r})\n"
        f"print(p.Child('counting', Path(sys.executable), {MODULE!r}, {{}}, {{}}).process, flush=True); time.sleep({PATIENCE})"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    process = int(parent.stdout.readline())
    try:
        assert wait_for(lambda: state(process) == "T")
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    assert wait_for(lambda: state(process) in (None, "Z"))


def test_a_child_that_cannot_load_is_absent_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.child.LOGS", tmp_path)
    with pytest.raises(PeerAbsent, match="counting ended: no such model"):
        Child("counting", Path(sys.executable), MODULE, {"broken": True}, {})


def test_a_child_does_not_inherit_the_number_of_threads(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.child.LOGS", tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    child = Child("counting", Path(sys.executable), MODULE, {}, {"A_SETTING": "on"})
    try:
        given = Path(f"/proc/{child.process}/environ")
        if given.exists():
            assert b"A_SETTING=on" in given.read_bytes()
            assert b"OMP_NUM_THREADS" not in given.read_bytes()
    finally:
        child.close()
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_an_environment_is_created_only_with_install():
    recipe = PeerRecipe("absent", ("no-such-package", "1.0"), ("no-such-package==1.0",))
    with pytest.raises(PeerAbsent, match=r"no no-such-package 1.0 in .build/peers/absent - give --install"):
        recipe.ready(install=False)
    assert not recipe.folder.exists()
