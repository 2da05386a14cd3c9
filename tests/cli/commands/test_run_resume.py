"""``rksc-tot run --resume``: a resumed run equals an uninterrupted one."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rksc_tot.cli.exits import INTERRUPTED, NOT_SOLVED
from rksc_tot.core.version import __version__
from rksc_tot.tasks.game24.task import Game24
from tests.cli.commands.run_command import (
    FEW,
    PUZZLES,
    assert_refused,
    quoted,
    results,
    run,
)
from tests.game24_player import player, write

pytestmark = pytest.mark.usefixtures("played")


def whole():
    run(quoted(), out="whole.jsonl")
    return results("whole.jsonl")


@pytest.mark.parametrize("kept", range(5))
@pytest.mark.parametrize("torn", ["", '{"problem": "4 5', "null"])
def test_a_resumed_run_equals_an_uninterrupted_one(kept, torn):
    expected = whole()
    lines = Path("whole.jsonl").read_bytes().splitlines(keepends=True)
    Path("r.jsonl").write_bytes(b"".join(lines[:kept]) + torn.encode())
    result = run(quoted(), "--resume", "--json")
    assert result.exit_code == 0
    assert (json.loads(result.stdout)["earlier"], json.loads(result.stdout)["now"]) == (kept, 4 - kept)
    assert results() == expected
    assert not Path("r.jsonl.new").exists()


def test_a_finished_run_loads_no_model_and_resume_may_start_a_run(monkeypatch):
    assert run(quoted(), "--resume").exit_code == 0
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: pytest.fail("loaded"))
    before = Path("r.jsonl").read_bytes()
    assert run(quoted(), "--resume").exit_code == 0
    assert Path("r.jsonl").read_bytes() == before


def test_settings_without_effect_on_results_may_change_on_resume():
    run(quoted(PUZZLES[:2]))
    args = ["--concurrency", "2", "--kv-budget", "64MiB", "--eviction", "lru", "--run-max-nodes", "9999"]
    assert run(quoted(), "--resume", *args).exit_code == 0
    assert [line["id"] for line in results()] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--seed", "1"], " has seed 0, not 1"),
        (["--set", "k=7"], " has strategy {'name': 'bfs', 'b': 2, 'k': 6}, not"),
        (["--verifier", "random"], " has verifier {'name': 'lm_value'}, not {'name': 'random'}"),
        (["--temperature", "0.5"], " has sampling temperature 1.0, not 0.5"),
        (["--max-nodes", "9"], " has budget nodes None, not 9"),
        (["--max-kv", "1MiB"], " has budget kv_bytes None, not 1048576"),
        (["--model", "other"], " has model 'embedded', not 'other'"),
        (["--dtype", "bfloat16"], " has dtype 'float32', not 'bfloat16'"),
        (["--trees"], " has trees False, not True"),
        (["--calibration", "embedded"], " has rksc None, not"),
    ],
)
def test_resume_refuses_other_settings(monkeypatch, args, says):
    run(quoted())
    before = Path("r.jsonl").read_bytes()
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: pytest.fail("loaded"))
    assert_refused(run(quoted(), "--resume", few=[*FEW, *args]), "'r.jsonl', line 1", says)
    assert Path("r.jsonl").read_bytes() == before


def test_resume_refuses_another_setting_of_the_verifier():
    run(quoted(), "--verifier", "likelihood")
    refused = run(quoted(), "--resume", "--verifier", "likelihood:of=path")
    assert_refused(refused, " has verifier {'name': 'likelihood', 'of': 'thought'}, not", "'of': 'path'")


def test_resume_refuses_another_version(monkeypatch):
    run(quoted())
    monkeypatch.setattr("rksc_tot.cli.commands.run.__version__", "0.0.0")
    assert_refused(run(quoted(), "--resume"), f" has rksc_tot '{__version__}', not '0.0.0'")


@pytest.mark.parametrize("content", ["x\n", "{}\n", '"4 5 6 10"\n', "[]\n", '{"id": 1, "problem": "4 5 6 10"}\n'])
def test_resume_refuses_another_file_and_does_not_change_it(no_model, content):
    Path("r.jsonl").write_text(content, encoding="utf-8")
    assert_refused(run(quoted(), "--resume"), "'r.jsonl', line 1 is not a result")
    assert Path("r.jsonl").read_text(encoding="utf-8") == content


def test_resume_refuses_results_of_other_problems():
    run(quoted())
    assert_refused(run(quoted(["1 1 3 8", *PUZZLES]), "--resume"), "problem 1 ('4 5 6 10') is '1 1 3 8' now")
    assert_refused(run(quoted(PUZZLES[:3]), "--resume"), "problem 4 ('1 1 4 6') is not among the problems")


def test_resume_repeats_failed_problems(monkeypatch):
    expected, original = whole(), Game24.prompt
    monkeypatch.setattr(Game24, "prompt", lambda self, p: 1 / 0 if p == (1, 2, 3, 4) else original(self, p))
    run(quoted())
    monkeypatch.setattr(Game24, "prompt", original)
    assert [line["id"] for line in results() if line["failure"]] == [2]
    assert run(quoted(), "--resume").exit_code == 0
    assert results() == expected


def test_a_run_stopped_by_its_budget_can_be_resumed():
    expected = whole()
    result = run(quoted(), "--run-max-nodes", "30", "--concurrency", "2", "--json")
    assert result.exit_code == NOT_SOLVED
    record = json.loads(result.stdout)
    assert record["stopped"] == "the run's budget of 30 nodes is used up"
    assert record["cut"] > 0
    assert record["done"] + record["cut"] + record["not_started"] == 4
    assert record["limited"] == 0
    lines = results()
    assert sum(line["result"]["ledger"]["nodes"] for line in lines) <= 30
    assert [line["verdict"] for line in lines].count("cut") == record["cut"]
    assert [line["verdict"] for line in lines].count("right") == record["solved"]
    assert "resume with: rksc-tot " in result.stderr
    assert run(quoted(), "--resume").exit_code == 0
    assert results() == expected


def test_ctrl_c_leaves_complete_lines_and_shows_the_resume_command(monkeypatch):
    expected, calls = whole(), []

    def interrupted(text, rng):
        calls.append(text)
        if len(calls) == 70:
            os.kill(os.getpid(), signal.SIGINT)
        return write(text, rng)

    engine = player(interrupted)
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: engine)
    monkeypatch.setattr(sys, "argv", ["/bin/rksc-tot", "run", "game24", "p q.jsonl", "--out", "r.jsonl"])
    before = signal.getsignal(signal.SIGINT)
    result = run(quoted(), "--concurrency", "2")
    assert result.exit_code == INTERRUPTED
    assert "resume with: rksc-tot run --resume game24 'p q.jsonl' --out r.jsonl\n" in result.stderr
    assert result.stderr.endswith("error: interrupted\n")
    assert signal.getsignal(signal.SIGINT) is before
    assert engine.handles == 0
    done = results()
    assert len(done) < 4
    assert all(line in expected for line in done)
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: player())
    assert run(quoted(), "--resume").exit_code == 0
    assert results() == expected


def test_a_killed_run_can_be_resumed():
    code = (
        "import os\nfrom rksc_tot.cli import engine, main\nfrom tests.game24_player import player, write\ncalls = []\n"
    )
    code += "def dies(text, rng):\n    calls.append(text)\n    if len(calls) == 70: os._exit(9)\n    return write(text, rng)\n"
    code += "engine.open_engine = lambda *_: player(dies)\nmain()"
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "game24", quoted(), "--out", "r.jsonl", "--concurrency", "1", *FEW],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
    )
    assert done.returncode == 9, done.stderr
    assert 0 < len(results()) < 4
    assert run(quoted(), "--resume").exit_code == 0
    assert results() == whole()


def test_the_resume_command_is_the_given_command_with_resume():
    from rksc_tot.cli.commands.run import _resume_command

    given = ["x/rksc-tot", "run", "game24", "a'b.jsonl", "--out", "o p", "--set", "k=1"]
    again = shlex.split(_resume_command(given))
    assert again == ["rksc-tot", "run", "--resume", *given[2:]]
    assert shlex.split(_resume_command(again)) == again
