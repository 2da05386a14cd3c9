"""``rksc-tot run``: one line for each problem, a summary, and refusals before a model is loaded."""

import json
import os
import signal
from pathlib import Path

import pytest

from rksc_tot.api.solve import solve
from rksc_tot.cli.exits import FAILED, INTERRUPTED, NOT_SOLVED, USAGE
from rksc_tot.core.tree import ReasoningTree
from rksc_tot.engine.mock.engine import MockEngine
from tests.cli.commands.run_command import (
    PUZZLES,
    assert_refused,
    cli_strategy,
    problems,
    quoted,
    results,
    run,
)
from tests.game24_player import judge, player, write

pytestmark = pytest.mark.usefixtures("played")


@pytest.mark.parametrize("concurrency", ["1", "32"])
def test_every_problem_has_a_line_with_the_result_of_solve(concurrency):
    assert run(quoted(), "--concurrency", concurrency).exit_code == 0
    lines = results()
    assert [line["id"] for line in lines] == [1, 2, 3, 4]
    for line, puzzle in zip(lines, PUZZLES, strict=True):
        alone = solve("game24", puzzle, engine=player(), strategy=cli_strategy())
        assert (line["problem"], line["failure"]) == (puzzle, None)
        assert (line["result"]["answer"], line["result"]["path"]) == (alone.answer, alone.path)
        assert line["result"]["correct"] is alone.correct
        assert line["result"]["ledger"]["tokens_sampled"] == alone.ledger.tokens_sampled
        assert "tree" not in line["result"]


def test_other_keys_and_ids_are_copied_to_the_results():
    given = [
        {"problem": PUZZLES[0], "id": "a b\n", "answer": "24", "meta": {"deep": [1, None, "é\ud800"]}},
        {"problem": PUZZLES[1], "id": 7},
        {"problem": PUZZLES[2], "best": 1e300},
    ]
    assert run(problems(*given)).exit_code == 0
    lines = {line["problem"]: line for line in results()}
    for line in given:
        kept = lines[line["problem"]]
        assert {key: kept[key] for key in line} == line
        assert set(kept) - set(line) <= {"id", "verdict", "result", "failure", "settings"}
    assert lines[PUZZLES[2]]["id"] == 3


def test_trees_are_written_where_they_are_wanted():
    run(quoted(PUZZLES[:1]), "--trees")
    [line] = results()
    tree = ReasoningTree.from_records(line["result"]["tree"])
    assert len(tree) == line["result"]["ledger"]["nodes"] + 1


def test_blank_lines_byte_order_mark_and_windows_line_ends_are_accepted():
    Path("p.jsonl").write_bytes(b'\xef\xbb\xbf"4 5 6 10"\r\n\r\n  \n"1 2 3 4"')
    assert run("p.jsonl").exit_code == 0
    assert [line["id"] for line in results()] == [1, 4]


def test_problems_may_come_from_stdin():
    assert run("-", input='"4 5 6 10"\n').exit_code == 0
    assert [line["problem"] for line in results()] == ["4 5 6 10"]


def test_the_summary_counts_every_problem():
    record = json.loads(run(quoted([*PUZZLES, "1 1 1 1"]), "--json").stdout)
    assert [record[name] for name in ("problems", "done", "refused", "failed", "not_started")] == [5, 5, 1, 0, 0]
    assert record["solved"] == sum(bool(line["result"] and line["result"]["correct"]) for line in results())
    assert record["tokens"] == sum(line["result"]["ledger"]["tokens_sampled"] for line in results() if line["result"])
    assert 0 < record["prefill_saved"] < 1
    assert record["stopped"] == "finished"
    shown = run(quoted([*PUZZLES, "1 1 1 1"]), out="2.jsonl")
    for part in ("problems", "solved", "refused by the task", "tokens sampled", "prefill saved", "seconds", "finished"):
        assert part in shown.stdout
    assert "not started" not in shown.stdout
    assert shown.stderr == ""


def test_a_problem_the_task_refuses_is_that_problems_failure():
    result = run(quoted(["1 1 1 1", *PUZZLES]))
    assert result.exit_code == 0
    assert [line["id"] for line in results() if line["failure"]] == [1]
    assert "no way to make 24" in results()[0]["failure"]
    assert results()[0]["verdict"] == "refused"
    before = Path("r.jsonl").read_bytes()
    again = run(quoted(["1 1 1 1", *PUZZLES]), "--resume", "--json")
    assert (again.exit_code, json.loads(again.stdout)["refused"], json.loads(again.stdout)["now"]) == (0, 1, 0)
    assert Path("r.jsonl").read_bytes() == before


def test_every_search_failed_is_an_error():
    result = run(quoted(["1 1 1 1", "4 5 six 10"]))
    assert result.exit_code == FAILED
    assert "every search failed, for example problem 1: there is no way to make 24" in result.stderr
    assert len(results()) == 2


def test_a_broken_engine_ends_the_run_and_resume_repeats_its_failures(monkeypatch):
    calls = []

    def breaks(text, rng):
        calls.append(text)
        return 1 / 0 if len(calls) > 60 else write(text, rng)

    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: MockEngine(breaks, judge))
    result = run(quoted([*PUZZLES, "1 1 3 8", "3 3 8 8"]), "--concurrency", "1")
    assert result.exit_code == FAILED
    assert "the writer raised ZeroDivisionError" in result.stderr
    assert "resume with: rksc-tot " in result.stderr
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: player())
    assert run(quoted([*PUZZLES, "1 1 3 8", "3 3 8 8"]), "--resume").exit_code == 0
    assert not any(line["failure"] for line in results())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2 is not JSON"),
        ("4 5 6 10", "line 2 is not JSON"),
        ("24", "line 2 has no problem"),
        ("null", "line 2 has no problem"),
        ('["4 5 6 10"]', "line 2 has no problem"),
        ('{"puzzle": "4 5 6 10"}', "line 2 has no problem"),
        ('{"problem": NaN}', "line 2 is not JSON"),
        ('{"problem": "x", "id": null}', "line 2 has the id None, which is neither a string nor a whole number"),
        ('{"problem": "x", "id": 1.5}', "line 2 has the id 1.5"),
        ('{"problem": "x", "id": true}', "line 2 has the id True"),
        ('{"problem": "x", "id": 1}', "line 2 repeats the id 1 of line 1"),
        ('{"problem": "x", "id": "1"}', "line 2 repeats the id '1' of line 1"),
        ('{"problem": "x", "result": 1}', "line 2 has the key 'result'"),
        ("[" * 99999, "line 2 is nested more than 100 deep"),
        ('"' + "9" * 5 + '" 1', "line 2 is not JSON"),
        ("9" * 5000, "line 2 is not JSON"),
    ],
)
def test_a_broken_line_is_named(no_model, line, says):
    assert_refused(run(problems('"4 5 6 10"', line)), "'p.jsonl': ", says)
    assert not Path("r.jsonl").exists()


def test_the_first_few_broken_lines_are_named_and_the_others_counted(no_model):
    assert_refused(run(problems(*"abcdef")), "line 1 is not JSON; line 2 is not JSON; line 3 is not JSON; and 3 more")


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(no_model, content):
    Path("p.jsonl").write_bytes(content)
    assert_refused(run("p.jsonl"), "'p.jsonl' holds no problem")


def test_files_that_cannot_be_read_or_written_are_refused(no_model):
    assert_refused(run("no/such.jsonl"), "'no/such.jsonl' cannot be read")
    Path("latin.jsonl").write_bytes(b'"\xe9"\n')
    assert_refused(run("latin.jsonl"), "'latin.jsonl' is not UTF-8")
    for out in ("no/such/r.jsonl", "."):
        assert_refused(run(quoted(), out=out), "cannot be written")
        assert_refused(run(quoted(), "--resume", out=out), "cannot be written")


def test_existing_results_are_not_overwritten(no_model):
    Path("r.jsonl").write_text("precious", encoding="utf-8")
    assert_refused(run(quoted()), "'r.jsonl' already exists", "--resume")
    assert Path("r.jsonl").read_text(encoding="utf-8") == "precious"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--run-max-tokens", "0"], "--run-max-tokens 0"),
        (["--run-max-seconds", "inf"], "--run-max-seconds inf is no limit"),
        (["--max-kv", "64 potatoes"], "'64 potatoes' is no size in bytes"),
        (["--strategy", "nope"], "no strategy 'nope'"),
        (["--verifier", "nope"], "no verifier 'nope'"),
        (["--model", ""], "--model is empty"),
        (["--eviction", "fifo"], "rsbcm"),
    ],
)
def test_a_wrong_value_is_refused(no_model, args, says):
    assert_refused(run(quoted(), *args, few=[]), says)


@pytest.mark.parametrize("args", [["--concurrency", "0"], ["--concurrency", "x"], ["--run-max-kv", "1MiB"]])
def test_wrong_usage_is_exit_code_2(no_model, args):
    assert run(quoted(), *args).exit_code == USAGE


def test_a_run_budget_too_small_for_any_search_is_reported():
    result = run(quoted(), "--run-max-nodes", "5", "--concurrency", "4")
    assert result.exit_code == NOT_SOLVED
    assert "no search finished within the run's budget; raise it or lower --concurrency\n" in result.stderr
    enough = run(quoted(), "--resume", "--run-max-nodes", "40", "--concurrency", "1")
    assert {line["verdict"] for line in results()} > {"cut"}
    assert "no search finished" not in enough.stderr


def test_a_right_answer_of_a_search_that_was_cut_is_not_yet_a_solved_problem():
    for nodes in range(1, 99):  # one after the other, until one has an answer and is not yet done
        Path("r.jsonl").unlink(missing_ok=True)
        record = json.loads(run(quoted(["1 2 3 4"]), "--run-max-nodes", str(nodes), "--json").stdout)
        [line] = results()
        assert (line["verdict"], record["solved"], record["done"], record["cut"]) == ("cut", 0, 0, 1)
        if line["result"]["correct"]:
            return
    pytest.fail("there was no right answer before the end")


def test_searches_that_their_own_budget_stopped_are_counted():
    record = json.loads(run(quoted(), "--max-nodes", "3", "--json").stdout)
    assert (record["limited"], record["done"], record["solved"], record["stopped"]) == (4, 4, 0, "finished")
    assert "solved 0 of 4" in " ".join(run(quoted(), "--max-nodes", "3", out="2.jsonl").stdout.split())


def test_a_run_without_a_solution_says_why_and_what_to_do():
    for resume in ([], ["--resume"]):
        done = run(quoted(), "--max-nodes", "3", *resume)
        said = " ".join(done.stdout.split())
        assert "no answer 4 4× the budget of 3 nodes is used up" in said
        assert "what to do about problems without an answer: check_task(" in done.stderr
    record = json.loads(run(quoted(), "--max-nodes", "3", "--json", out="2.jsonl").stdout)
    assert record["unanswered"] == 4
    assert record["reasons"] == {"unanswered": {"the budget of 3 nodes is used up": 4}}


def test_a_budget_of_kv_is_kept_by_each_search():
    run(quoted(), "--max-kv", "200")
    assert {line["result"]["stopped"] for line in results()} == {"the budget of 200 KV bytes is used up"}


def test_sigterm_ends_a_run_like_ctrl_c_with_exit_code_143(monkeypatch):
    def told_to_end(text, rng):
        if "5 11" in text.split("\n")[0]:
            pytest.fail("went on")
        if not ended:
            ended.append(os.kill(os.getpid(), signal.SIGTERM))
        return write(text, rng)

    ended: list[None] = []
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: player(told_to_end))
    before = signal.getsignal(signal.SIGTERM)
    result = run(quoted(), "--concurrency", "1")
    assert result.exit_code == 128 + signal.SIGTERM
    assert "stopped" in result.stdout
    assert "resume with: rksc-tot " in result.stderr
    assert result.stderr.endswith("error: terminated\n")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_ctrl_c_ends_a_run_at_once(monkeypatch):
    def interrupted_twice(text, rng):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("went on")

    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: player(interrupted_twice))
    assert run(quoted()).exit_code == INTERRUPTED
    assert not Path("r.jsonl").exists()
