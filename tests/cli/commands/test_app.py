import asyncio
import json
import os
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rksc_tot import tasks
from rksc_tot.cli.commands import app as cli
from rksc_tot.cli.exits import FAILED, INTERRUPTED, NOT_SOLVED, USAGE
from rksc_tot.core.errors import ModelLoadError
from rksc_tot.core.plugins import registry
from rksc_tot.core.task import Question, Task
from rksc_tot.core.tree import ReasoningTree
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.evaluation import choose_contenders
from rksc_tot.policies.compression.base import COMPRESSION_POLICIES
from rksc_tot.strategies import BFS, STRATEGIES
from rksc_tot.tasks import TASKS
from rksc_tot.tasks.game24.task import Game24
from rksc_tot.verifiers import VERIFIERS, verifier
from tests.game24_player import player, write

PUZZLE = "4 5 6 10"
BEST = "best-of-n with an exact checker, at equal tokens"


@pytest.fixture(autouse=True)
def mock(monkeypatch):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: player())


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
        "shared, exact",
        "tokens sampled",
        "lm_value",
        "k=32",
    ):
        assert part in result.stdout


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
        (["solve", "game24", PUZZLE, "--max-kv", "0"], "--max-kv '0' is no KV budget"),
        (["compare", "game24", PUZZLE, "--max-kv", "much"], "--max-kv 'much' is no KV budget"),
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


@verifier
def near(problem, path):
    """How near the last thought is.

    And more.
    """
    return 0.0


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


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit(), GeneratorExit(), asyncio.CancelledError()])
def test_no_exception_of_a_plug_in_ends_the_command_with_exit_code_0(monkeypatch, error):
    def leaves(self, problem):
        raise error

    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: leaves(None, None))
    for args in (["solve", "game24", PUZZLE], ["compare", "game24", PUZZLE]):
        assert type(error).__name__ in assert_one_sentence(run(*args))
        assert run(*args, "--debug").exit_code == 1


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


def test_a_broken_plug_in_is_listed_with_its_error_beside_the_others(monkeypatch):
    points = [
        EntryPoint("exits", "sys:exit", "g"),
        EntryPoint("number", "math:pi", "g"),
        EntryPoint("gone", "no:such", "g"),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    lines = dict(line.split(maxsplit=1) for line in run("tasks").stdout.splitlines())
    assert all(lines.pop(point.name).startswith("(task ") for point in points)
    assert lines
    assert not any(line.startswith("(") for line in lines.values())


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


@pytest.mark.parametrize(
    ("command", "names"),
    [("tasks", TASKS), ("strategies", STRATEGIES), ("verifiers", VERIFIERS), ("policies", COMPRESSION_POLICIES)],
    ids=lambda x: str(x)[:9],
)
def test_lists_name_everything_with_a_line_each(command, names):
    lines = [line for line in run(command).stdout.splitlines() if not line.startswith(" ")]
    assert [line.split(maxsplit=1)[0] for line in lines] == names.names()
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)


def test_every_setting_that_can_be_set_is_listed_with_its_default_and_range():
    said = run("strategies").stdout
    for name in STRATEGIES.names():
        for setting, default in STRATEGIES.make(name).model_dump().items():
            assert f"{setting}={default!r}  " in said
    said = run("policies").stdout
    for name in COMPRESSION_POLICIES.names():
        for setting in {*type(COMPRESSION_POLICIES.make(name)).model_fields} - {"seed"}:
            assert f" {setting}=" in said
    assert "theta=[1.0,0.0,1.0]  list of 3: weights of search value, boundary entropy and attention\n" in said
    assert "fit=None  file: output of `rksc-tot fit arborkv`" in said
    said = run("strategies").stdout
    assert "k=5  whole number, at least 1, at most 1000000: thoughts generated after each state" in said
    assert "reduce='mean'  mean or sum" in said
    assert "usual bfs: b=5, k=32" in run("tasks").stdout
    assert "longest=400" in run("verifiers").stdout


def test_a_verifier_made_of_a_function_is_listed_by_what_the_function_says(monkeypatch):
    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint("mine", f"{__name__}:near", group)])
    said = run("verifiers").stdout
    assert "mine        How near the last thought is.\n" in said
    assert "0x" not in said


def test_every_row_of_a_comparison_can_be_chosen_by_the_label_it_is_listed_with():
    for task in ("game24", "game24-chain"):
        labels = run("compare", task, "--list").stdout.splitlines()
        assert labels == [contender.label for contender in choose_contenders(task)]


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
