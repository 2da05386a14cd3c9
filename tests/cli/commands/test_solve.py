"""``rksc-tot solve``: output, JSON and exit codes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rksc_tot import tasks
from rksc_tot.cli.exits import FAILED, INTERRUPTED, NOT_SOLVED, USAGE
from rksc_tot.core.task import Question, Task
from rksc_tot.core.tree import ReasoningTree
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.strategies import BFS
from rksc_tot.tasks.game24.task import Game24
from tests.cli.commands.one_command import PUZZLE, assert_one_sentence, run
from tests.game24_player import player, write

pytestmark = pytest.mark.usefixtures("played")


def test_a_solved_puzzle_shows_tree_path_answer_and_ledger():
    result = run("solve", "game24", PUZZLE)
    assert result.exit_code == 0, result.output
    for part in (
        "▶",
        "(left: 24)",
        "answer: ",
        "(right)",
        "shared, exact",
        "tokens sampled",
        "lm_value",
        "k=32",
    ):
        assert part in result.stdout


def test_thinking_blocks_are_counted_in_the_report():
    result = run("solve", "game24", PUZZLE, "--thinking", "16")
    assert result.exit_code in (0, NOT_SOLVED), result.output
    assert "blocks closed by force" in result.stdout


def test_thinking_markers_may_be_named():
    named = run("solve", "game24", PUZZLE, "--thinking", "16", "--thinking-markers", "<a>,</a>", "--json")
    assert (
        json.loads(named.stdout)["settings"]["thinking"] | {"budget": 16, "markers": ["<a>", "</a>"]}
        == json.loads(named.stdout)["settings"]["thinking"]
    )
    for arguments, says in (
        (("--thinking-markers", "<a>,</a>"), "--thinking-markers is given without --thinking - add --thinking 512"),
        (("--thinking", "16", "--thinking-markers", "<a>"), "--thinking-markers is '<a>' - write two texts"),
        (("--thinking", "16", "--thinking-markers", "a,a"), "not two different texts"),
    ):
        assert says in assert_one_sentence(run("solve", "game24", PUZZLE, *arguments), USAGE)


@pytest.mark.parametrize("command", ["solve", "run", "check", "compare"])
def test_a_setting_of_a_task_given_as_an_option_is_refused_with_how_to_give_it(command):
    done = run(command, "rows:rows.jsonl", "--max-thoughts", "3")
    assert done.exit_code == USAGE
    assert "--task-set max_thoughts=" in " ".join(done.stderr.replace("│", " ").split())


def test_with_json_stdout_has_only_json():
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
@pytest.mark.parametrize("judge", ["likelihood", "random", "lm_value"])
def test_every_strategy_runs_with_every_verifier(strategy, judge):
    result = run("solve", "game24", PUZZLE, "--strategy", strategy, "--verifier", judge)
    assert result.exit_code in (0, NOT_SOLVED), result.output


def test_settings_of_the_strategy_override_the_usual_ones():
    record = json.loads(run("solve", "game24", PUZZLE, "--json", "--set", "k=2", "--set", "b=1").stdout)
    assert record["settings"]["strategy"] == {"name": "bfs", "b": 1, "k": 2}


class FirstWord(Task):
    """Its question is about the last thought, so it cannot be asked at the root."""

    def validate(self, problem):
        return {"known": "word"}[problem]

    def prompt(self, problem):
        return f"{problem}\n"

    def is_solution(self, problem, path):
        return len(path) == 1

    def question(self, problem, path):
        return Question(f"is {path[-1].text} good", {"yes": 1.0, "no": 0.0})


@pytest.fixture
def first_word(monkeypatch):
    monkeypatch.setattr(tasks, "load_task", lambda name: FirstWord())
    judged = MockEngine(lambda text, rng: "hello\n", lambda text, question, labels: {"yes": 1.0})
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: judged)


def test_a_question_that_needs_a_thought_is_asked_of_thoughts(first_word):
    record = json.loads(run("solve", "mine", "known", "--json").stdout)
    assert (record["answer"], record["settings"]["verifier"]["name"]) == ("hello", "lm_value")


def test_an_error_of_validate_refuses_the_problem(first_word):
    assert "'unknown' does not fit the task: KeyError" in assert_one_sentence(run("solve", "mine", "unknown"))


def test_an_error_of_a_question_is_reported_by_the_search(monkeypatch):
    def leaves(self, problem, path):
        raise SystemExit(0)

    monkeypatch.setattr(Game24, "question", leaves)
    assert "question raised SystemExit" in assert_one_sentence(run("solve", "game24", PUZZLE))


def test_a_setting_that_is_wrong_within_a_search_is_an_error_not_wrong_usage(monkeypatch):
    async def expands_nothing(self, search):
        await search.expand([search.root], 0)

    monkeypatch.setattr(BFS, "run", expands_nothing)
    assert "k of at least 1" in assert_one_sentence(run("solve", "game24", PUZZLE), FAILED)


def test_infinite_and_missing_numbers_are_strict_json():
    def refuse(word):
        raise AssertionError(word)

    result = run("solve", "game24", PUZZLE, "--json", "--strategy", "dfs", "--set", "threshold=-1e999")
    record = json.loads(result.stdout, parse_constant=refuse)
    assert record["settings"]["strategy"]["threshold"] == "-inf"


@pytest.mark.parametrize(
    ("limit", "said"), [(["--max-nodes", "3"], "budget of 3 nodes"), (["--max-kv", "0.2kB"], "budget of 200 KV bytes")]
)
def test_a_budget_that_ends_the_search_keeps_the_best_so_far(limit, said):
    result = run("solve", "game24", PUZZLE, *limit)
    assert result.exit_code == NOT_SOLVED
    assert said in result.stdout
    assert "1. " in result.stdout


@pytest.mark.parametrize("reply", ["", "[bold]x[/]\n", "\x1b[2J\n", "x" * 500, "\ufffd\n"])
def test_useless_replies_end_in_no_answer_not_in_an_error(monkeypatch, reply):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: player(lambda text, rng: reply))
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
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: player(interrupted))
    result = run("solve", "game24", PUZZLE)
    assert result.exit_code == INTERRUPTED
    assert "1. " in result.stdout
    assert "interrupted" in result.stdout
    assert signal.getsignal(signal.SIGINT) is before


def test_an_ascii_terminal_is_no_error():
    code = "from rksc_tot.cli import engine, main\nfrom tests.game24_player import player\n"
    code += "engine.open_engine = lambda *_: player()\nmain()"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, "solve", "game24", PUZZLE],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    assert "answer: " in done.stdout
