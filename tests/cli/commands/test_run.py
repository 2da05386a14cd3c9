"""``rksc-tot run``: complete lines, each problem once, and a resumed run equals an uninterrupted one."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rksc_tot.api.jsonl_reader import read_results
from rksc_tot.api.solve import solve
from rksc_tot.cli.commands import app as cli
from rksc_tot.cli.exits import FAILED, INTERRUPTED, NOT_SOLVED, USAGE
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.tree import ReasoningTree
from rksc_tot.core.version import __version__
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.tasks.game24.task import Game24
from tests.game24_player import judge, player, write

PUZZLES = ["4 5 6 10", "1 2 3 4", "2 5 8 11", "1 1 4 6"]
FEW = ["--set", "k=6", "--set", "b=2"]


@pytest.fixture(autouse=True)
def mock(monkeypatch):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: player())


def problems(*lines, name="p.jsonl"):
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    Path(name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return name


def quoted(puzzles=PUZZLES):
    return problems(*map(json.dumps, puzzles))


def run(*args, out="r.jsonl", few=FEW, **options):
    return CliRunner().invoke(cli.app, ["run", "game24", *args, "--out", out, *few], **options)


def refuse(constant):
    raise AssertionError(constant)


def results(out="r.jsonl"):
    """The lines of a results file, in the order of their ids, without times."""
    text = Path(out).read_bytes()
    assert text == b"" or text.endswith(b"\n")
    records = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    for record in records:
        if record["result"]:
            del record["result"]["ledger"]["seconds"]
            del record["result"]["ledger"]["peak_kv_bytes"]  # of all searches of the moment
    return sorted(records, key=lambda record: str(record["id"]))


def assert_refused(result, *says):
    assert result.exit_code == USAGE, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for words in says:
        assert words in result.stderr


# -- results -------------------------------------------------------------------------------------------------------------


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


def cli_strategy():
    from rksc_tot.strategies import BFS

    return BFS(k=6, b=2)


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


@pytest.mark.parametrize("reply", ["\x1b[2J\u2028\x00\n", '"}\n', "\ud800\n", "é" * 300])
def test_every_line_is_json_whatever_the_model_writes(monkeypatch, reply):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: MockEngine(lambda text, rng: reply, judge))
    monkeypatch.setattr(
        Game24, "parse", lambda self, problem, path, text: super(Game24, self).parse(problem, path, text)
    )
    run(quoted(), "--trees")
    assert len(results()) == 4


def test_infinite_numbers_are_written_as_strings():
    assert run(quoted(), "--strategy", "dfs", "--set", "threshold=-1e999", few=["--set", "k=3"]).exit_code == 0
    assert results()[0]["settings"]["strategy"]["threshold"] == "-inf"
    assert (
        run(quoted(), "--resume", "--strategy", "dfs", "--set", "threshold=-1e999", few=["--set", "k=3"]).exit_code == 0
    )


# -- summary and exit code -----------------------------------------------------------------------------------------------


def test_the_summary_counts_what_was_done():
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


# -- what is refused before a model is loaded ----------------------------------------------------------------------------


@pytest.fixture
def no_model(monkeypatch):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: pytest.fail("loaded"))


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
        (["--max-kv", "64 potatoes"], "'64 potatoes' is no KV budget"),
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


# -- going on ------------------------------------------------------------------------------------------------------------


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
        (["--temperature", "0.5"], " has sampling {'temperature': 1.0, "),
        (["--max-nodes", "9"], " has budget {}, not {'nodes': 9}"),
        (["--max-kv", "1MiB"], " has budget {}, not {'kv_bytes': 1048576}"),
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


# -- the run's budget ----------------------------------------------------------------------------------------------------


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


# -- reading it again ----------------------------------------------------------------------------------------------------


def test_read_results_gives_trees_and_skips_an_incomplete_line():
    run(quoted(["1 1 1 1", *PUZZLES]), "--trees")
    with Path("r.jsonl").open("ab") as file:
        file.write(b'{"id": 9, "prob')
    lines = list(read_results("r.jsonl"))
    assert sorted(line["id"] for line in lines) == [1, 2, 3, 4, 5]
    for line in lines:
        if line["verdict"] == "refused":
            assert line["result"] is None
            continue
        alone = solve("game24", line["problem"], engine=player(), strategy=cli_strategy())
        assert line["result"]["tree"] == alone.tree
        assert line["verdict"] == {True: "right", False: "wrong", None: "unanswered"}[alone.correct]


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "fine"},
        {"verdict": None},
        {"verdict": "failed"},
        {"failure": "x"},
        {"result": None},
        {"settings": 1},
    ],
)
def test_read_results_names_an_invalid_line(change):
    run(quoted(PUZZLES[:2]))
    first, second = Path("r.jsonl").read_text(encoding="utf-8").splitlines()
    Path("r.jsonl").write_text(f"{first}\n{json.dumps(json.loads(second) | change)}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^'r.jsonl', line 2 is not a result"):
        list(read_results("r.jsonl"))
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_results("none.jsonl"))


def test_a_line_names_the_verifier_and_the_model_that_were_used():
    run(quoted(PUZZLES[:1]))
    run(quoted(PUZZLES[:1]), "--verifier", "likelihood", "--model", "embedded", out="2.jsonl")
    said = [results(out)[0]["settings"] for out in ("r.jsonl", "2.jsonl")]
    assert [each["verifier"]["name"] for each in said] == ["lm_value", "likelihood"]
    assert [each["model"] for each in said] == ["embedded", "embedded"]
    assert run(quoted(PUZZLES[:1]), "--resume", "--verifier", "lm_value").exit_code == 0


def test_a_budget_of_kv_is_kept_by_each_search():
    run(quoted(), "--max-kv", "200")
    assert {line["result"]["stopped"] for line in results()} == {"the budget of 200 KV bytes is used up"}


# -- Ctrl-C --------------------------------------------------------------------------------------------------------------


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
