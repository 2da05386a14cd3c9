"""``rksc-tot run`` with failing files, streams and signals: no result is lost, and every error is one sentence."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import rksc_tot.views.terminal.run_progress
from rksc_tot.api.jsonl_reader import read_results
from rksc_tot.cli import results_writer
from rksc_tot.cli.exits import FAILED, INTERRUPTED, USAGE
from rksc_tot.core.plugins.strict_json import DEEPEST
from tests.cli.commands.run_command import PUZZLES, assert_refused, problems, quoted, results, run
from tests.game24_player import player
from tests.patience import PATIENCE

resource = pytest.importorskip("resource")


@pytest.fixture(autouse=True)
def mock(monkeypatch):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: player())


def held(name="r.jsonl"):
    """Another run's hold of a file."""
    return results_writer.ResultsWriter(Path(name), lambda problem: {}, False)


def nested(deep):
    return json.loads("[" * deep + "]" * deep)


# -- the file of the results ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_two_runs_cannot_write_one_file(resume):
    with held():
        assert_refused(run(quoted(), *resume), "'r.jsonl' is in use by another run")
    assert run(quoted(), *resume).exit_code == 0


def test_a_replaced_results_file_is_still_locked():
    run(quoted(PUZZLES[:1]))
    half_a_line(Path("r.jsonl"))
    with held() as mine:
        before = os.stat("r.jsonl").st_ino
        mine._keep({1})
        assert os.stat("r.jsonl").st_ino != before
        assert_refused(run(quoted(), "--resume"), "in use by another run")
    assert run(quoted(), "--resume").exit_code == 0
    assert len(results()) == 4


def test_a_file_replaced_while_it_was_opened_is_not_locked(monkeypatch):
    run(quoted(PUZZLES[:1]))
    samestat = os.path.samestat

    def late(mine, theirs):
        Path("other").write_bytes(b"")
        Path("other").replace("r.jsonl")
        return samestat(mine, os.stat("r.jsonl"))

    monkeypatch.setattr(results_writer.os.path, "samestat", late)
    assert_refused(run(quoted(), "--resume"), "in use by another run")


def half_a_line(file):
    with file.open("a") as out:
        out.write('{"half')


def test_a_link_stays_a_link_and_other_files_are_not_changed():
    Path("there").mkdir()
    Path("r.jsonl").symlink_to("there/real.jsonl")
    assert run(quoted(PUZZLES[:2])).exit_code == 0
    real, own = Path("there/real.jsonl"), Path("there/real.jsonl.new")
    half_a_line(real)
    real.chmod(0o640)
    own.write_text("mine")
    assert run(quoted(), "--resume").exit_code == 0
    assert Path("r.jsonl").is_symlink()
    assert len(results("there/real.jsonl")) == 4
    assert real.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir("there")) == ["real.jsonl", "real.jsonl.new"]
    assert own.read_text() == "mine"


def test_a_full_disk_is_one_sentence_and_the_run_can_be_resumed():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    quoted()
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        full = run("p.jsonl", "--concurrency", "1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert full.exit_code == FAILED
    assert full.stderr.splitlines()[-1].startswith("error: 'r.jsonl' cannot be written: File too large")
    assert "resume with: " in full.stderr
    assert run("p.jsonl", "--resume").exit_code == 0
    assert len(results()) == 4


@pytest.mark.parametrize("name", ["n" * 300, "missing/r.jsonl", "link", "loop", "folder"])
def test_a_file_that_cannot_be_created_is_refused_before_a_model_is_loaded(name, monkeypatch):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: pytest.fail("loaded"))
    Path("link").symlink_to("gone/r.jsonl")
    Path("loop").symlink_to("loop")
    Path("folder").mkdir()
    for resume in ([], ["--resume"]):
        assert_refused(run(quoted(), *resume, out=name), "cannot be written")


# -- problems and results ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deep", [DEEPEST + 1, 300, 5000, 200_000])
def test_a_problem_that_nests_too_deeply_is_refused_with_its_line(deep):
    line = '{"problem": ' + "[" * deep + "]" * deep + "}"
    assert_refused(run(problems('"4 5 6 10"', line)), "line 2 is nested more than 100 deep")
    assert not Path("r.jsonl").exists()


def test_a_problem_at_the_nesting_limit_can_be_resumed():
    lines = problems(*({"problem": nested(DEEPEST), "id": n} for n in range(2)), '"4 5 6 10"')
    assert run(lines).exit_code == 0
    before = Path("r.jsonl").read_bytes()
    assert run(lines, "--resume").exit_code == 0
    assert Path("r.jsonl").read_bytes() == before
    assert [line["verdict"] for line in results()].count("refused") == 2


@pytest.mark.parametrize("number", ["1e999", "-1e999", '[1, {"a": 1e400}]'])
def test_a_number_that_is_not_finite_is_refused(number):
    assert_refused(run(problems('{"problem": ' + number + "}")), "line 1 is not JSON")


def circular():
    answer = []
    answer.append(answer)
    return answer


@pytest.mark.parametrize("odd", [lambda: nested(900), circular, lambda: 10**5000], ids=["deep", "circular", "long"])
def test_a_result_without_a_json_form_is_the_failure_of_its_problem(odd, monkeypatch):
    record_of = results_writer.record_of

    def with_odd(result, tree):
        return {**record_of(result, tree=tree), **({"odd": odd()} if result.problem == PUZZLES[1] else {})}

    monkeypatch.setattr(results_writer, "record_of", with_odd)
    ended = run(quoted(), "--json")
    assert ended.exit_code == 0, ended.output
    lines = {line["problem"]: line for line in results()}
    assert [problem for problem, line in lines.items() if line["verdict"] == "failed"] == [PUZZLES[1]]
    assert lines[PUZZLES[1]]["failure"].startswith("the result cannot be written as JSON: ")
    assert json.loads(ended.stdout)["failed"] == 1


@pytest.mark.parametrize("change", [{"settings": 7}, {"settings": None}, {"result": {}}, {"result": {"stopped": 1}}])
def test_an_invalid_line_of_results_is_refused(change):
    run(quoted(PUZZLES[:1]))
    [line] = read_results("r.jsonl")
    problems({**line, **change}, name="r.jsonl")
    assert_refused(run(quoted(PUZZLES[:1]), "--resume"), "'r.jsonl', line 1 is not a result")


# -- streams and signals -------------------------------------------------------------------------------------------------


def in_a_process(*args, **options):
    """The command in a process of its own."""
    program = (
        "import sys; from rksc_tot.cli import engine, main; from tests.game24_player import player\n"
        "engine.open_engine = lambda *_: player()\n"
        f"sys.argv = {['rksc-tot', 'run', 'game24', *args, '--out', 'r.jsonl', '--set', 'k=6', '--set', 'b=2']!r}\n"
        "main()"
    )
    root = Path(__file__).parents[3]
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(root)},
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        check=False,
        **options,
    )


def test_a_closed_stdin_is_refused():
    ended = in_a_process("-", preexec_fn=lambda: os.close(0))
    assert ended.returncode == USAGE
    assert ended.stderr.startswith("error: stdin is closed")


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_closed_stdout_loses_no_result(as_json):
    reading, writing = os.pipe()
    os.close(reading)
    ended = in_a_process(quoted(), *as_json, stdout=writing)
    os.close(writing)
    assert "unexpected" not in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(results()) == 4


def test_ctrl_c_before_the_first_search_ends_the_run(monkeypatch):
    @contextmanager
    def early(*_):
        signal.raise_signal(signal.SIGINT)
        yield

    monkeypatch.setattr(rksc_tot.views.terminal.run_progress, "run_progress", early)
    ended = run(quoted())
    assert ended.exit_code == INTERRUPTED
    assert "resume with: " in ended.stderr
    assert not Path("r.jsonl").exists()


def test_ctrl_c_while_the_model_is_loaded_shows_the_resume_command(monkeypatch):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: signal.raise_signal(signal.SIGINT))
    ended = run(quoted())
    assert ended.exit_code == INTERRUPTED
    assert "resume with: rksc-tot --resume" in ended.stderr or "--resume" in ended.stderr
    assert not Path("r.jsonl").exists()
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: player())
    assert run(quoted(), "--resume").exit_code == 0
