"""Tasks of rows on the command line: solve, run, compare and check, by options and by config file."""

import json
from pathlib import Path

import pytest

from rksc_tot.cli.exits import NOT_SOLVED, USAGE
from rksc_tot.engine.mock.engine import MockEngine
from tests.cli.commands.one_command import assert_one_sentence, run

OPTIONS = ("--prompt", "{question}\n", "--task-set", "max_thoughts=2")


def write(text, rng):
    return " 9.\n" if text.endswith("is") else "4 and 5.\n"


@pytest.fixture(autouse=True)
def rows(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *arguments: MockEngine(write))
    rows = [{"question": "4 + 5?", "answer": "9"}, {"question": "4 * 5?", "answer": "20", "id": "b"}]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_solve_takes_a_problem_as_json_and_as_text():
    for problem in ('{"question": "4 + 5?", "answer": "9"}', "4 + 5?"):
        result = run("solve", "rows:rows.jsonl", problem, *OPTIONS, "--json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["answer"] == "9"
    refused = run("solve", "rows:rows.jsonl", '{"query": "x"}', *OPTIONS)
    assert "has no field 'question'; it has 'query'" in assert_one_sentence(refused)


def test_run_searches_the_rows_and_resumes_only_with_the_same_settings():
    arguments = ("run", "rows:rows.jsonl", *OPTIONS, "--out", "r.jsonl", "--strategy", "cot")
    assert run(*arguments).exit_code == 0
    records = [json.loads(line) for line in Path("r.jsonl").read_text("utf-8").splitlines()]
    assert {(record["id"], record["verdict"]) for record in records} == {(1, "right"), ("b", "wrong")}
    assert records[0]["settings"]["rows"]["prompt"] == "{question}\n"
    assert run(*arguments, "--resume").exit_code == 0
    changed = run(*arguments, "--resume", "--answer", "boxed")
    assert "has rows answer 'number', not 'boxed'" in assert_one_sentence(changed, USAGE)


def test_a_run_with_examples_resumes_only_with_the_same_ones():
    arguments = ("run", "rows:rows.jsonl", *OPTIONS, "--out", "r.jsonl", "--strategy", "cot", "--examples", "e.jsonl")
    Path("e.jsonl").write_text('{"question": "1 + 1?", "answer": 2}\n')
    assert run(*arguments, "--run-max-nodes", "2").exit_code == NOT_SOLVED
    assert run(*arguments, "--resume").exit_code == 0
    Path("e.jsonl").write_text('{"question": "1 + 1?", "answer": 3}\n')
    assert "has rows examples " in assert_one_sentence(run(*arguments, "--resume"), USAGE)


def test_compare_takes_contenders_of_ones_own():
    own = '{"strategy": "beam", "label": "short", "settings": {"b": 1}, "sampling": {"top_p": 0.5}, "budget": {"tokens": 1}}'
    result = run("compare", "rows:rows.jsonl", *OPTIONS, "--contender", "cot", "--contender", own, "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert [(row["strategy"], row["solved"], row["n"]) for row in record["rows"]] == [("cot", 1, 2), ("short", 0, 2)]
    assert record["rows"][1]["settings"]["sampling"]["top_p"] == 0.5
    assert record["rows"][1]["settings"]["budget"] == {"tokens": 1}
    assert [problem["id"] for problem in record["problems"]] == [1, "b"]


def test_compare_takes_a_file_of_problems_and_a_limit():
    Path("p.jsonl").write_text('{"problem": {"question": "4 + 5?", "answer": "9"}, "id": "x"}\n' * 1, encoding="utf-8")
    for more, expected in ((("--problems", "p.jsonl"), ["x"]), (("--limit", "1"), [1])):
        result = run("compare", "rows:rows.jsonl", *OPTIONS, "--contender", "cot", *more, "--json")
        assert [problem["id"] for problem in json.loads(result.stdout)["problems"]] == expected
    listed = run("compare", "rows:rows.jsonl", *OPTIONS, "--list")
    assert "self_consistency" in listed.stdout.splitlines()


def test_a_config_file_holds_the_same_settings():
    Path("c.toml").write_text(
        'prompt = [{role = "user", content = "{question}"}]\nanswer = "number"\n'
        'task-set = {max_thoughts = 2}\ncontender = [{strategy = "cot", label = "greedy"}]\n',
        encoding="utf-8",
    )
    result = run("compare", "rows:rows.jsonl", "--config", "c.toml", "--json")
    assert result.exit_code == 0, result.output
    assert [row["strategy"] for row in json.loads(result.stdout)["rows"]] == ["greedy"]


def test_check_shows_what_the_model_writes():
    result = run("check", "rows:rows.jsonl", *OPTIONS)
    assert result.exit_code == 0, result.output
    assert "3 of 3 sampled thoughts end at 'lines'" in result.stdout
    assert "│ 4 and 5. (stop)" in result.stdout
    bad = run("check", "rows:rows.jsonl", *OPTIONS, "--answer", "math:sqrt", "--json")
    assert bad.exit_code == NOT_SOLVED
    assert any(finding["level"] == "error" for finding in json.loads(bad.stdout))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "rows:rows.jsonl", "--out", "r"), "has no prompt - add --prompt"),
        (("run", "game24", "--out", "r"), "there are no problems to search - name a file of problems"),
        (("check", "game24"), "there is no problem to check the task on"),
        (("solve", "game24", "4 5 6 10", "--prompt", "x"), "--prompt is not for the task 'game24'"),
        (("solve", "game24", "4 5 6 10", "--task-set", "a=1"), "--task-set is not for the task 'game24'"),
        (("run", "rows:none.jsonl", *OPTIONS, "--out", "r"), "'none.jsonl' cannot be read"),
        (("run", "rows:rows.jsonl", *OPTIONS, "--answer", "last", "--out", "r"), "answer is 'last' - there are number"),
        (("run", "rows:rows.jsonl", *OPTIONS, "--reward", "x", "--out", "r"), "there is no reward 'x'"),
        (("compare", "rows:rows.jsonl", *OPTIONS, "--contender", "bim"), "there is no strategy 'bim'"),
        (("compare", "rows:rows.jsonl", *OPTIONS, "--contender", '{"a": 1}'), "name its strategy"),
        (("compare", "rows:rows.jsonl", *OPTIONS, "--contender", "cot", "--contender", "cot"), "the label 'cot'"),
        (("compare", "rows:rows.jsonl", *OPTIONS, "x", "--problems", "p.jsonl"), "--problems is given with other problems"),
    ],
)  # fmt: skip
def test_missing_and_misplaced_options_are_refused_with_what_to_do(arguments, words):
    assert words in assert_one_sentence(run(*arguments), USAGE)
