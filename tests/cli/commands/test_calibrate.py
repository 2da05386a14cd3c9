"""``rksc-tot calibrate`` and ``rksc-tot solve --calibration``, on a mock engine that plays the game of 24."""

import json

import pytest
from typer.testing import CliRunner

from rksc_tot.cli.commands import app as cli
from rksc_tot.cli.exits import NOT_SOLVED, USAGE
from rksc_tot.core.errors import ConfigError
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.evaluation.calibration import Calibration
from rksc_tot.evaluation.problems import calibration_problems, choose_problems, training_puzzles
from tests.game24_player import judge, write
from tests.layered_mock import drawn

MOST = ["--training-puzzles", "--most", "36", "--delta", "0.1", "--set", "k=3", "--set", "b=2"]


def lens(text, question, labels, layer):
    """Right and sure from layer 3 on, before that anything and unsure."""
    if layer >= 3:
        return judge(text, question, labels)
    return {label: 0.8 if label == drawn(text, layer).choice(labels) else 0.1 for label in labels}


def player(lens=lens):
    return MockEngine(write, judge, layers=6, lens=lens)


@pytest.fixture(autouse=True)
def mock(monkeypatch):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: player())


def run(*args):
    return CliRunner().invoke(cli.app, [*map(str, args)])


def test_a_calibration_is_shown_written_and_used(tmp_path):
    file = tmp_path / "c.json"
    shown = run("calibrate", "game24", *MOST, "--out", file)
    assert shown.exit_code == 0, shown.output
    for part in ("layer exit", "of layers", "95% bound", "verify skip: off, because", "36 problems, 7 of them"):
        assert part in " ".join(shown.stdout.split())
    assert Calibration.load(file).exit.rule is not None
    record = json.loads(run("solve", "game24", "4 5 6 10", "--json", "--calibration", file, "--audit", "0").stdout)
    assert record["ledger"]["layer_exit"]["acted"] == record["ledger"]["verifier_calls"] > 0
    assert record["settings"]["rksc"]["audit"] == 0
    report = run("solve", "game24", "4 5 6 10", "--calibration", file, "--audit", "1").stdout
    assert "audited differ" in " ".join(report.split())
    assert "layer exit" not in run("solve", "game24", "4 5 6 10").stdout


def test_json_is_the_calibration_itself(tmp_path):
    done = run("calibrate", "game24", *MOST, "--out", tmp_path / "c.json", "--json")
    assert Calibration.model_validate_json(done.stdout) == Calibration.load(tmp_path / "c.json")


def test_without_an_accepted_rule_the_exit_code_is_3_and_the_file_says_why(tmp_path, monkeypatch):
    def lying(text, question, labels, layer):
        return {label: float(label == drawn(text, layer).choice(labels)) for label in labels}

    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: player(lying))
    done = run("calibrate", "game24", *MOST, "--out", tmp_path / "c.json")
    assert done.exit_code == NOT_SOLVED
    assert "layer exit: off, because" in done.stdout
    assert Calibration.load(tmp_path / "c.json").exit.refused


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["4 5 6 10"], "takes at least 299 problems"),
        ([], "there are no problems"),
        (["4 5 6 10", "--training-puzzles"], "problems and --training-puzzles are given together"),
        (["4 5 6 10", "--rows", "1-9"], "without --training-puzzles"),
        (["--problems", "/no/such/file"], "'/no/such/file' cannot be read"),
        (["--training-puzzles", "--delta", "0"], "delta is 0.0"),
        (["--training-puzzles", "--alpha", "nan"], "alpha is nan"),
        (["--training-puzzles", "--model", " "], "--model is empty"),
    ],
)
def test_wrong_usage_is_a_sentence(args, message, tmp_path):
    done = run("calibrate", "game24", "--out", tmp_path / "c.json", *args)
    assert done.exit_code == USAGE, done.output
    assert message in done.stderr
    assert not (tmp_path / "c.json").exists()


@pytest.mark.parametrize("given", ["none.json", "embedded-not"])
def test_a_calibration_that_cannot_be_read_is_a_sentence_before_a_model_is_loaded(monkeypatch, given):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: 1 / 0)
    done = run("solve", "game24", "4 5 6 10", "--calibration", given)
    assert done.exit_code == USAGE
    assert f"the calibration '{given}' cannot be read" in done.stderr


def test_training_puzzles_exclude_all_held_out_puzzles(tmp_path):
    puzzles = training_puzzles()
    held_out = {*choose_problems(held_out=True), *choose_problems(held_out_states=True)}
    assert len(puzzles) > 1000
    assert not held_out & set(puzzles)
    (tmp_path / "p.csv").write_text(f"Rank,Puzzles\n1,{puzzles[0]}\n2,{puzzles[1]}\n")
    assert set(puzzles) - set(training_puzzles(tmp_path / "p.csv", "1-1")) == {puzzles[0]}
    assert set(puzzles) - set(training_puzzles(tmp_path / "p.csv")) == {puzzles[0], puzzles[1]}


def test_problems_may_come_from_a_file_with_one_on_each_line(tmp_path):
    (tmp_path / "p.txt").write_text("one\n\n  two \nthree\n")
    assert calibration_problems(file=tmp_path / "p.txt") == ["one", "two", "three"]
    assert len(calibration_problems(file=tmp_path / "p.txt", most=2)) == 2
    (tmp_path / "p.jsonl").write_text('"one"\n{"problem": "two", "id": 7}\n')
    assert calibration_problems(file=tmp_path / "p.jsonl") == ["one", "two"]
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ConfigError, match="holds no problem"):
        calibration_problems(file=tmp_path / "empty.txt")


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_searched(tmp_path):
    from typer.testing import CliRunner

    from rksc_tot.cli.commands.app import app

    for out in (tmp_path / "nowhere" / "c.json", tmp_path):
        found = CliRunner().invoke(app, ["calibrate", "game24", "4 5 6 10", "--out", str(out)])
        assert found.exit_code == 2
        assert "cannot be written" in found.output
