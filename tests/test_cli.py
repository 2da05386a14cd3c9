import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rksc_tot.cli import commands as cli
from rksc_tot.cli.failing import FAILED, INTERRUPTED, NOT_SOLVED, USAGE
from rksc_tot.errors import ModelLoadError
from rksc_tot.tree import ReasoningTree

from .game24_player import player, write

PUZZLE = "4 5 6 10"


@pytest.fixture(autouse=True)
def mock(monkeypatch):
    monkeypatch.setattr(cli, "open_engine", lambda model: player())


def run(*args):
    return CliRunner().invoke(cli.app, [*args])


def assert_one_sentence(result, code=FAILED):
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
    return result.stderr


def test_a_solved_puzzle_shows_tree_path_answer_and_ledger():
    result = run("solve", "game24", PUZZLE)
    assert result.exit_code == 0, result.output
    for part in (
        "▶",
        "(left: 24)",
        "answer: ",
        "(right)",
        "prefill saved by sharing",
        "tokens sampled",
        "lm_value",
        "k=32",
    ):
        assert part in result.stdout


def test_json_is_all_there_is_on_stdout():
    record = json.loads(run("solve", "game24", PUZZLE, "--json").stdout)
    assert record["correct"] is True
    assert record["settings"]["seed"] == 0
    assert record["ledger"]["prefill_saved"] > 0
    assert len(ReasoningTree.from_json(json.dumps(record["tree"]))) == record["ledger"]["nodes"] + 1


def test_the_same_seed_gives_the_same_tree_and_another_seed_another():
    one, same, other = (
        json.loads(run("solve", "game24", PUZZLE, "--json", "--set", "k=3", "--seed", seed).stdout)["tree"]
        for seed in "112"
    )
    assert one == same != other


@pytest.mark.parametrize("strategy", ["bfs", "dfs", "beam", "cot", "self_consistency", "best_of_n"])
@pytest.mark.parametrize("verifier", ["likelihood", "random", "lm_value"])
def test_every_strategy_runs_with_every_verifier(strategy, verifier):
    result = run("solve", "game24", PUZZLE, "--strategy", strategy, "--verifier", verifier)
    assert result.exit_code in (0, NOT_SOLVED), result.output


def test_settings_of_the_strategy_override_the_usual_ones():
    record = json.loads(run("solve", "game24", PUZZLE, "--json", "--set", "k=2", "--set", "b=1").stdout)
    assert record["settings"]["strategy"] == {"name": "bfs", "b": 1, "k": 2}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["solve", "game24", "1 1 1 1"], "no way to make 24 from 1 1 1 1"),
        (["solve", "game24", "4 5 6"], "3 numbers, not 4"),
        (["solve", "game24", "4 5 six 10"], "'six' is not a whole number"),
        (["solve", "game24", ""], "0 numbers"),
        (["solve", "chess", "e4"], "no task 'chess'"),
        (["solve", "game24", PUZZLE, "--strategy", "mcts2"], "no strategy 'mcts2'"),
        (["solve", "game24", PUZZLE, "--verifier", "oracle"], "no verifier 'oracle'"),
        (["solve", "game24", PUZZLE, "--set", "k=0"], "k"),
        (["solve", "game24", PUZZLE, "--set", "k=many"], "k"),
        (["solve", "game24", PUZZLE, "--set", "depth=3"], "depth"),
        (["solve", "game24", PUZZLE, "--max-tokens", "0"], "--max-tokens 0"),
        (["solve", "game24", PUZZLE, "--max-nodes", "-1"], "--max-nodes -1"),
        (["solve", "game24", PUZZLE, "--max-verifier-calls", "0"], "--max-verifier-calls 0"),
        (["solve", "game24", PUZZLE, "--max-seconds", "0"], "--max-seconds 0"),
        (["solve", "game24", PUZZLE, "--max-seconds", "nan"], "--max-seconds nan"),
        (["compare", "chess", "e4"], "no task 'chess'"),
        (["compare", "game24"], "nothing to compare on"),
        (["compare", "game24", PUZZLE, "--held-out"], "problems and --held-out"),
        (["compare", "game24", "--puzzles", "no/such.csv"], "no/such.csv"),
        (["compare", "game24", PUZZLE, "--rows", "1-2"], "--rows 1-2 without a file"),
        (["compare", "game24", PUZZLE, "--only", "nobody"], "no row 'nobody'"),
        (["compare", "game24", "1 1 1 1"], "every search failed"),
    ],
)
def test_bad_input_is_one_sentence_that_names_it(args, says):
    assert says in assert_one_sentence(run(*args))


@pytest.mark.parametrize(
    "args", [["solve"], ["solve", "game24"], ["nonsense"], ["solve", "game24", PUZZLE, "--set", "k"]]
)
def test_wrong_usage_is_exit_code_2(args):
    assert run(*args).exit_code == USAGE


@pytest.mark.parametrize("error", [ModelLoadError("no model at 'x'", hint="give a folder"), RuntimeError("two\nlines")])
def test_any_error_is_a_sentence_and_a_traceback_only_with_debug(monkeypatch, error):
    def fails(model):
        raise error

    monkeypatch.setattr(cli, "open_engine", fails)
    assert_one_sentence(run("solve", "game24", PUZZLE))
    assert run("solve", "game24", PUZZLE, "--debug").exception is error


def test_a_budget_that_ends_the_search_keeps_the_best_so_far():
    result = run("solve", "game24", PUZZLE, "--max-nodes", "3")
    assert result.exit_code == NOT_SOLVED
    assert "budget of 3 nodes" in result.stdout
    assert "1. " in result.stdout


@pytest.mark.parametrize("reply", ["", "[bold]x[/]\n", "\x1b[2J\n", "x" * 500, "\ufffd\n"])
def test_useless_replies_end_in_no_answer_not_in_an_error(monkeypatch, reply):
    monkeypatch.setattr(cli, "open_engine", lambda model: player(lambda text, rng: reply))
    result = run("solve", "game24", PUZZLE)
    assert result.exit_code == NOT_SOLVED
    assert "no answer" in result.stdout
    assert "\x1b" not in result.stdout


def test_ctrl_c_ends_with_the_best_so_far_and_130(monkeypatch):
    calls = []

    def interrupted(text, rng):
        calls.append(text)
        if len(calls) == 60:
            os.kill(os.getpid(), signal.SIGINT)
        return write(text, rng)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(cli, "open_engine", lambda model: player(interrupted))
    result = run("solve", "game24", PUZZLE)
    assert result.exit_code == INTERRUPTED
    assert "1. " in result.stdout
    assert "interrupted" in result.stdout
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_in_a_comparison_shows_the_rows_that_are_done(monkeypatch):
    engines = []

    def second_fails(model):
        engines.append(model)
        if len(engines) == 2:
            raise KeyboardInterrupt
        return player()

    monkeypatch.setattr(cli, "open_engine", second_fails)
    result = run("compare", "game24", PUZZLE, "--json")
    assert result.exit_code == INTERRUPTED
    assert [row["strategy"] for row in json.loads(result.stdout)["rows"]] == ["CoT greedy"]


@pytest.mark.parametrize("command", ["tasks", "strategies", "verifiers"])
def test_lists_name_everything_with_a_line_each(command):
    lines = run(command).stdout.splitlines()
    assert len(lines) >= 2
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)


def test_a_terminal_that_knows_ascii_only_is_no_error():
    code = "import sys\nfrom rksc_tot.cli import commands as cli\nfrom tests.game24_player import player\n"
    code += "cli.open_engine = lambda model: player()\ncli.main()"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, "solve", "game24", PUZZLE],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    assert "answer: " in done.stdout
