"""All commands: wrong usage and errors are one sentence, plug-ins go by name, and options reach the engine."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rksc_tot.cli.exits import INTERRUPTED, USAGE
from rksc_tot.core.errors import ModelLoadError
from tests.cli.commands.one_command import PUZZLE, assert_one_sentence, run
from tests.game24_player import player

pytestmark = pytest.mark.usefixtures("played")

BEST = "best-of-n with an exact checker, at equal tokens"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["solve", "game24", "1 1 1 1"], "no way to make 24 from 1 1 1 1"),
        (["solve", "game24", "4 5 6"], "3 numbers, not 4"),
        (["solve", "game24", "4 5 six 10"], "'six' is not a whole number"),
        (["solve", "game24", ""], "0 numbers"),
        (["compare", "game24", "1 1 1 1"], "every search failed"),
        (["compare", "game24", "4", "5", "6", "10"], 'put a problem of several words in quotes, such as "4 5 6 10"'),
    ],
)
def test_a_refused_problem_is_an_error_of_one_sentence(args, says):
    assert says in assert_one_sentence(run(*args))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["solve", "chess", "e4"], "no task 'chess'"),
        (["solve", "game24", PUZZLE, "--strategy", "mcts2"], "no strategy 'mcts2'"),
        (["solve", "game24", PUZZLE, "--verifier", "oracle"], "no verifier 'oracle'"),
        (["solve", "game24", PUZZLE, "--set", "k=0"], "k"),
        (["solve", "game24", PUZZLE, "--set", "k=many"], "k"),
        (["solve", "game24", PUZZLE, "--set", "depth=3"], "depth"),
        (["solve", "game24", PUZZLE, "--set", "k"], "--set is 'k' - write name=value, such as k=16"),
        (["solve", "game24", PUZZLE, "--max-tokens", "0"], "--max-tokens 0"),
        (["solve", "game24", PUZZLE, "--max-nodes", "-1"], "--max-nodes -1"),
        (["solve", "game24", PUZZLE, "--max-verifier-calls", "0"], "--max-verifier-calls 0"),
        (["solve", "game24", PUZZLE, "--max-seconds", "0"], "--max-seconds 0"),
        (["solve", "game24", PUZZLE, "--max-seconds", "nan"], "--max-seconds nan"),
        (["solve", "game24", PUZZLE, "--max-seconds", "inf"], "--max-seconds inf is no limit - leave it out"),
        (["solve", "game24", PUZZLE, "--max-kv", "0"], "--max-kv '0' is no size in bytes"),
        (["compare", "game24", PUZZLE, "--max-kv", "much"], "--max-kv 'much' is no size in bytes"),
        (["solve", "game24", PUZZLE, "--set", "name=x"], "no setting 'name' - its settings are b, k"),
        (["solve", "game24", PUZZLE, "--model", " "], "--model is empty"),
        (["compare", "game24", PUZZLE, "--model", ""], "--model is empty"),
        (["compare", "game24", PUZZLE, "--only", BEST], "needs 'ToT-BFS b=5' and 'self-consistency n=20'"),
        (["compare", "game24", PUZZLE, "10 6 5 4"], "'10 6 5 4' is the same problem as '4 5 6 10'"),
        (["compare", "chess", "e4"], "no task 'chess'"),
        (["compare", "game24"], "no problems to compare on"),
        (["compare", "game24", PUZZLE, "--held-out"], "problems and --held-out"),
        (["compare", "game24", "--puzzles", "no/such.csv"], "no/such.csv"),
        (["compare", "game24", PUZZLE, "--rows", "1-2"], "--rows 1-2 without a file"),
        (["compare", "game24", PUZZLE, "--only", "unknown"], "no row 'unknown'"),
        (["compare", "game24", "--rows", "901-902"], "--rows 901-902 without a file - add --puzzles FILE"),
        (["solve", "no.such:Task", "p"], "task 'no.such:Task' cannot be imported: ModuleNotFoundError"),
        (["solve", "math:nothing", "p"], "task 'math:nothing' cannot be imported: AttributeError"),
        (["solve", "math:pi", "p"], "is float, not a Task"),
        (["solve", ":", "p"], "no task ':'"),
    ],
)
def test_a_wrong_value_on_the_command_line_is_wrong_usage_in_one_sentence(args, says):
    assert says in assert_one_sentence(run(*args), USAGE)


@pytest.mark.parametrize("args", [["solve"], ["solve", "game24"], ["nonsense"]])
def test_wrong_usage_is_exit_code_2(args):
    assert run(*args).exit_code == USAGE


@pytest.mark.parametrize("command", ["solve", "compare"])
def test_a_problem_that_begins_with_a_minus_gets_a_hint(command):
    result = run(command, "game24", "-4 5 6 10")
    assert result.exit_code == USAGE
    assert "Put a problem that begins with - last, after --" in " ".join(result.stderr.replace("│", "").split())
    assert "is not a whole number" in assert_one_sentence(run("solve", "game24", "--", "-4 5 6 10"))


@pytest.mark.parametrize(
    "args",
    [["--verifier", "nope"], ["--strategy", "nope"], ["--set", "k=0"], ["--max-seconds", "inf"], ["--model", ""]],
)
def test_no_model_is_loaded_for_arguments_that_are_wrong(monkeypatch, args):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: pytest.fail("loaded"))
    assert_one_sentence(run("solve", "game24", PUZZLE, *args), USAGE)


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit(), GeneratorExit(), asyncio.CancelledError()])
def test_no_exception_of_a_plug_in_ends_the_command_with_exit_code_0(monkeypatch, error):
    def leaves(self, problem):
        raise error

    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: leaves(None, None))
    for args in (["solve", "game24", PUZZLE], ["compare", "game24", PUZZLE]):
        assert type(error).__name__ in assert_one_sentence(run(*args))
        assert run(*args, "--debug").exit_code == 1


def test_ctrl_c_during_imports_is_one_sentence():
    code = "import sys\nfrom rksc_tot.cli import main\nassert 'typer' not in sys.modules\n"
    code += "class Stop:\n    def find_spec(self, name, *_):\n        if name == 'typer': raise KeyboardInterrupt\n"
    code += "sys.meta_path.insert(0, Stop())\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (INTERRUPTED, "error: interrupted\n")


@pytest.mark.parametrize("error", [ModelLoadError("no model at 'x'", hint="give a folder"), RuntimeError("two\nlines")])
def test_any_error_is_a_sentence_and_a_traceback_only_with_debug(monkeypatch, error):
    def fails(*_):
        raise error

    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", fails)
    assert_one_sentence(run("solve", "game24", PUZZLE))
    assert run("solve", "game24", PUZZLE, "--debug").exception is error


def test_ctrl_c_in_a_comparison_shows_the_rows_that_are_done(monkeypatch):
    engines = []

    def second_fails(*model):
        engines.append(model)
        if len(engines) == 2:
            raise KeyboardInterrupt
        return player()

    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", second_fails)
    result = run("compare", "game24", PUZZLE, "--json")
    assert result.exit_code == INTERRUPTED
    assert [row["strategy"] for row in json.loads(result.stdout)["rows"]] == ["CoT greedy"]


def test_a_problem_without_quotes_gets_a_hint():
    result = run("solve", "game24", *PUZZLE.split())
    assert result.exit_code == USAGE
    assert 'put a problem of several words in quotes, such as "4 5 6 10"' in " ".join(
        result.stderr.replace("│", "").split()
    )


def test_a_model_is_loaded_where_and_how_the_command_says(monkeypatch):
    asked = []
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *how: asked.append(how) or player())
    how = ["--model", "m", "--device", "cuda:1", "--dtype", "bfloat16"]
    run("solve", "game24", PUZZLE, *how)
    run("compare", "game24", PUZZLE, "--only", "CoT greedy", *how)
    assert [options[:3] for options in asked] == [("m", "cuda:1", "bfloat16")] * 2


@pytest.mark.parametrize(("option", "value"), [("--device", "nowhere"), ("--dtype", "int7")])
def test_an_unknown_device_or_dtype_is_wrong_usage(monkeypatch, option, value):
    monkeypatch.undo()
    assert repr(value) in assert_one_sentence(run("solve", "game24", PUZZLE, option, value), USAGE)


OWN = """
from rksc_tot import function_task, verifier
from rksc_tot.strategies import BFS
from rksc_tot.tasks.game24.task import Game24

class Mine(Game24):
    name = "mine"

words = function_task(prompt=lambda p: f"{p}\\n", is_solution=lambda p, path: len(path) == 1)
wide = BFS(k=40)

@verifier(timeout=None)
def near(problem, path):
    return -min(abs(24 - number) for number in path.state)

def plain(problem, path):
    return 1.0

def number():
    return 1.0
"""


@pytest.fixture
def own(monkeypatch, tmp_path):
    (tmp_path / "written_here.py").write_text(OWN, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("written_here", None)


def test_plug_ins_of_the_current_folder_are_named_as_module_and_attribute(own):
    names = ["--strategy", "written_here:wide", "--verifier", "written_here:near", "--set", "b=3"]
    record = json.loads(run("solve", "written_here:Mine", PUZZLE, "--json", *names).stdout)
    assert record["settings"]["task"] == "mine"
    assert record["settings"]["strategy"] == {"name": "bfs", "b": 3, "k": 40}
    assert record["settings"]["verifier"]["function"] == "written_here:near"
    assert run("compare", "written_here:words", PUZZLE, "--only", "cot").exit_code == 0


@pytest.mark.parametrize("name", ["plain", "number"])
def test_a_plain_function_as_a_verifier_gets_a_hint(own, name):
    Path("p.jsonl").write_text(f'"{PUZZLE}"\n', encoding="utf-8")
    for command in (["solve", "game24", PUZZLE], ["run", "game24", "p.jsonl", "--out", "r.jsonl"]):
        result = run(*command, "--verifier", f"written_here:{name}")
        assert result.exit_code == USAGE
        assert result.stderr.endswith(" - put @verifier above the function\n")


def test_the_share_audited_has_one_default_and_it_is_shown():
    from rksc_tot.cli.options.search import SearchOptions
    from rksc_tot.search.approximate.rksc import RKSC

    usual = RKSC().audit
    assert SearchOptions(sibling=0.9).rksc().audit == usual
    assert SearchOptions(sibling=0.9, audit=0.5).rksc().audit == 0.5
    assert SearchOptions(audit=0.5).rksc().audit == 0.5  # of what a compression policy let go of
    assert SearchOptions().rksc() is None
    for command in ("solve", "run"):
        said = " ".join(run(command, "--help").stdout.replace("│", " ").split())
        for default in (usual, "the embedded model", "merge equal thoughts only", "never", "drop nothing"):
            assert f"Default: {default}." in said


def test_the_current_folder_is_imported_only_for_module_and_attribute(own):
    before = [*sys.path]
    run("solve", "game24", PUZZLE)
    assert sys.path == before


def test_budget_and_eviction_reach_the_engine(monkeypatch):
    given = []
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *options: given.append(options) or player())
    memory = ["--kv-budget", "64MiB", "--eviction", "lru"]
    assert run("solve", "game24", PUZZLE, *memory).exit_code == 0
    assert run("compare", "game24", PUZZLE, "--only", "ToT-BFS b=5", *memory).exit_code == 0
    assert len(given) == 2
    for *_, told in given:
        assert (told.kv_budget, told.eviction.name) == (64 << 20, "lru")


@pytest.mark.parametrize("command", ["solve", "compare"])
@pytest.mark.parametrize(
    ("option", "value", "help"),
    [
        ("--kv-budget", "64 potatoes", "64MiB"),
        ("--kv-budget", "0", "64MiB"),
        ("--kv-budget", "-1MiB", "64MiB"),
        ("--eviction", "fifo", "rsbcm"),
    ],
)
def test_an_invalid_budget_or_eviction_is_refused_before_a_model_is_loaded(monkeypatch, command, option, value, help):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: 1 / 0)
    message = assert_one_sentence(run(command, "game24", PUZZLE, option, value), USAGE)
    assert value in message
    assert help in message
