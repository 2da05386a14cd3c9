"""Options of how thoughts are written, on the command line: --thinking and --constraint of solve, run and compare."""

import json
from pathlib import Path

import pytest

from rksc_tot import load_engine
from rksc_tot.cli.exits import USAGE
from rksc_tot.engine.mock.engine import MockEngine
from tests.cli.commands.one_command import PUZZLE, assert_one_sentence, run

ROWS = ("rows:rows.jsonl", "--prompt", "{question}\n", "--task-set", "max_thoughts=1")
FORM = r"4 \+ 5 = 9 \(left: 6 9 10\)"
SOURCE = {"kind": "regex", "source": FORM}


@pytest.fixture(autouse=True)
def rows(here):
    Path("rows.jsonl").write_text('{"question": "4 + 5?", "answer": "9"}\n', encoding="utf-8")
    Path("p.jsonl").write_text(f'"{PUZZLE}"\n', encoding="utf-8")


def test_compare_lets_the_model_think_within_the_budget(monkeypatch):
    thought = []

    def thinks(text, rng):
        if text.endswith("<think>"):
            thought.append(text)
            return "hm, well, so</think>9\n"
        return " 9\n" if thought else " 8\n"

    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: MockEngine(thinks))
    arguments = ("compare", *ROWS, "--contender", "cot", "--json")
    for more, solved in (((), 0), (("--thinking", "40"), 1)):
        result = run(*arguments, *more)
        assert result.exit_code == 0, result.output
        record = json.loads(result.stdout)
        assert ("thinking" in record, record["rows"][0]["solved"]) == (bool(more), solved)
    assert record["thinking"]["budget"] == 40
    assert "greater than or equal to 1, not 0" in assert_one_sentence(run(*arguments, "--thinking", "0"), USAGE)


@pytest.fixture
def one_engine(monkeypatch):
    """All commands of a test use one engine with the embedded model."""
    with load_engine() as engine, monkeypatch.context() as patched:
        patched.setattr(engine, "close", lambda: None)
        patched.setattr("rksc_tot.cli.engine.open_engine", lambda *_: engine)
        yield


def test_solve_run_and_compare_take_a_constraint_of_thoughts(one_engine):
    option = ("--constraint", f"regex:{FORM}")
    solved = json.loads(run("solve", "game24", PUZZLE, "--strategy", "cot", "--json", *option).stdout)
    assert solved["path"][0] == "4 + 5 = 9 (left: 6 9 10)"
    compared = run("compare", "game24", PUZZLE, "--only", "CoT greedy", "--json", *option)
    assert compared.exit_code == 0, compared.output
    record = json.loads(compared.stdout)
    assert (record["constraint"], record["rows"][0]["solved"]) == (SOURCE, 0)
    arguments = ("run", "game24", "p.jsonl", "--out", "r.jsonl", "--strategy", "cot")
    assert run(*arguments, *option).exit_code == 0
    assert json.loads(Path("r.jsonl").read_text("utf-8"))["settings"]["constraint"] == SOURCE
    assert run(*arguments, "--resume").exit_code == USAGE


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("schema", "--constraint is 'schema' - write regex:PATTERN, json_schema:FILE or grammar:FILE"),
        ("regex:", "--constraint is 'regex:'"),
        ("json_schema:none.json", "the constraint 'none.json' cannot be read: No such file"),
        ("json_schema:p.jsonl", "the JSON schema of a constraint is not a JSON object"),
        ("grammar:.", "the constraint '.' cannot be read"),
    ],
)
@pytest.mark.parametrize("command", [("solve", "game24", PUZZLE), ("compare", "game24", PUZZLE)])
def test_a_constraint_that_cannot_be_read_is_refused_before_a_model_is_loaded(command, given, words, no_model):
    assert words in assert_one_sentence(run(*command, "--constraint", given), USAGE)


@pytest.mark.parametrize(
    ("task", "first"), [("sudoku4", ".4133..4.......2"), ("countdown", "1 1 1 12 -> 24"), ("game24", "3 6 6 8")]
)
def test_compare_takes_the_held_out_problems_of_the_task(task, first, monkeypatch):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: MockEngine(lambda text, rng: "no\n"))
    result = run("compare", task, "--held-out", "--limit", "1", "--contender", "cot", "--json")
    [problem] = json.loads(result.stdout)["problems"]
    assert problem == first


@pytest.mark.parametrize(("task", "option"), [("arithmetic", "--held-out"), ("countdown", "--held-out-states")])
def test_a_task_without_a_held_out_set_is_refused(task, option, no_model):
    words = f"the task '{task}' has no problems for {option} - name problems, or a task with such a set: "
    assert words in assert_one_sentence(run("compare", task, option, "--contender", "cot"), USAGE)
