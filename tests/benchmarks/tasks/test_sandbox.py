"""The attacks of ``python -m benchmarks sandbox``."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.tasks.sandbox import ATTACKS, NAME, NAMED, SECRET, Target, aimed, left_behind, search_goes_on
from benchmarks.tasks.sandbox import held as attack_is_held
from rksc_tot.tasks.sandbox import Sandbox

SLOW = {"fork_bomb_of_many", "sleep", "endless_loop"}  # they end at a limit of time


@pytest.fixture
def target(tmp_path, monkeypatch):
    if missing := sys.platform != "linux" or Sandbox().guarantees().missing:
        pytest.skip(f"this system cannot hold {missing}")
    monkeypatch.setenv("HOST_SECRET", SECRET)
    tmp_path.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        target = Target(tmp_path, server)
        target.secret.write_text(SECRET, encoding="utf-8")
        yield target


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in ATTACKS])
def test_the_attack_fails_and_leaves_nothing_behind(name, target):
    assert attack_is_held(name, target)


@pytest.mark.slow
async def test_a_search_over_the_attacks_goes_on(target):
    assert await search_goes_on(target)


@pytest.mark.parametrize("name", ["write_outside", "overwrite_outside", "symlink_escape", "socket"])
def test_outside_the_sandbox_the_attack_would_be_noticed(name, target):
    subprocess.run([sys.executable, "-c", aimed(ATTACKS[name], target)], cwd=target.folder.parent, check=True)
    assert not target.untouched


def test_a_process_that_is_left_behind_would_be_noticed(target):
    assert left_behind() == []
    comm = Path("/proc/self/comm")
    before = comm.read_text(encoding="utf-8")
    exec(NAMED, {})
    try:
        assert comm.read_text(encoding="utf-8").strip() == NAME[:15]
        assert left_behind()
    finally:
        comm.write_text(before, encoding="utf-8")
