"""``rksc-tot fit arborkv`` and ``--compress arborkv:fit=FILE``."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rksc_tot.cli.commands import app as cli
from rksc_tot.cli.exits import USAGE
from rksc_tot.engine.transformers_engine.settings import EngineSettings
from rksc_tot.evaluation.arborkv import fit as arborkv
from rksc_tot.evaluation.arborkv.fit import MEASURING, Feature
from rksc_tot.evaluation.probe import fit as probe
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.arborkv_fit import ArborFit
from rksc_tot.strategies import BFS
from rksc_tot.verifiers.probe import ProbeFit
from tests.game24_player import player

PUZZLES = ["4 5 6 10", "1 2 7 8", "4 5 9 9", "3 9 12 13"]


def run(*args):
    return CliRunner().invoke(cli.app, [*map(str, args)])


@pytest.fixture
def file(found):
    found.fit.save("f.json")
    return "f.json"


def test_the_command_passes_its_options_to_the_function_and_writes_the_result(monkeypatch, found):
    asked = []

    def fit_arborkv(task, problems, **options):
        asked.append((task.name, problems, options["engine"], options["strategy"], options["seed"]))
        return found

    engine = player()
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: engine)
    monkeypatch.setattr(arborkv, "fit_arborkv", fit_arborkv)
    done = run("fit", "arborkv", "game24", *PUZZLES, "--seed", 2, "--set", "k=9", "--json")
    assert done.exit_code == 0, done.output
    assert asked == [("game24", PUZZLES, engine, BFS(b=5, k=9), 2)]
    record = json.loads(done.stdout)
    assert ArborFit.model_validate(record["fit"]) == ArborFit.load("arborkv.json") == found.fit
    assert tuple(record["interval"]) == found.interval
    assert [Feature(**feature) for feature in record["features"]] == found.features


def test_a_fit_is_shown_and_written(monkeypatch, found):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: player())
    monkeypatch.setattr(arborkv, "fit_arborkv", lambda *_, **options: found)
    done = run("fit", "arborkv", "game24", *PUZZLES, "--out", "f.json")
    assert done.exit_code == 0, done.output
    fit, said = found.fit, " ".join(done.stdout.split())
    for part in ("search value", "boundary entropy", "attention", "offset", "95%: ", "0.5 is chance", "of 4 problems"):
        assert part in said
    for number in (f"{fit.theta[0]:.4g}", f"{fit.separation:.2f}", f"{fit.samples} thoughts", f"{fit.changed} of them"):
        assert number in said
    assert "written to f.json" in said
    assert ArborFit.load("f.json") == fit
    unknown = found._replace(fit=fit.model_copy(update={"separation": None}), interval=None)
    monkeypatch.setattr(arborkv, "fit_arborkv", lambda *_, **options: unknown)
    assert "unknown" in run("fit", "arborkv", "game24", *PUZZLES).stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_fit_that_cannot_be_written_is_still_shown(monkeypatch, found):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: player())
    monkeypatch.setattr(arborkv, "fit_arborkv", lambda *_, **options: found)
    monkeypatch.setattr("rksc_tot.cli.commands.fit.check_writable", lambda out: None)  # /dev may be read-only
    done = run("fit", "arborkv", "game24", *PUZZLES, "--out", "/dev/full")
    assert done.exit_code == USAGE
    assert done.stderr == "error: '/dev/full' cannot be written: No space left on device\n"
    assert f"{found.fit.theta[0]:.4g}" in done.stdout
    assert "written to" not in done.stdout
    done = run("fit", "arborkv", "game24", *PUZZLES, "--out", "/dev/full", "--json")
    assert done.exit_code == USAGE
    assert ArborFit.model_validate(json.loads(done.stdout)["fit"]) == found.fit


def test_a_search_uses_the_fit_and_its_result_records_it(file):
    compress = ["--compress", f"arborkv:fit={file},tail=2", "--kv-budget", "2MiB"]
    record = json.loads(run("solve", "game24", PUZZLES[0], "--json", *compress, "--set", "k=8").stdout)
    kept = record["numerics"]["compression"]
    assert kept["theta"] == list(ArborFit.load(file).theta)
    assert (kept["fit"]["task"], kept["tail"]) == ("game24", 2)
    Path("c.toml").write_text(f'[compress]\nname = "arborkv"\nfit = "{file}"\ntail = 2\n', encoding="utf-8")
    again = json.loads(run("solve", "game24", PUZZLES[0], "--json", "--config", "c.toml", "--set", "k=8").stdout)
    assert again["numerics"]["compression"] == kept


def test_a_fit_for_another_task_is_refused_before_a_model_is_loaded(monkeypatch, file):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: pytest.fail("loaded"))
    Path("mine.py").write_text(
        "from rksc_tot.tasks.game24.task import Game24\n\nclass Mine(Game24):\n    name = 'mine'\n", encoding="utf-8"
    )
    Path("p.jsonl").write_text(json.dumps(PUZZLES[0]) + "\n", encoding="utf-8")
    rest = {"solve": [PUZZLES[0]], "compare": [PUZZLES[0]], "run": ["p.jsonl", "--out", "r.jsonl"]}
    for command in ([name, "mine:Mine", *given] for name, given in rest.items()):
        done = run(*command, "--compress", f"arborkv:fit={file}")
        assert done.exit_code == USAGE
        assert "was made for task game24 of 'embedded', not mine" in done.stderr


def test_a_fit_for_another_model_is_refused(file):
    other = ArborFit.load(file).model_copy(update={"weights": "0" * 64, "model": "elsewhere"})
    other.save("other.json")
    done = run("solve", "game24", PUZZLES[0], "--compress", "arborkv:fit=other.json")
    assert done.exit_code == USAGE
    assert "weights 000000000000 of 'elsewhere', not " in done.stderr


def test_a_file_that_was_edited_is_refused_before_a_model_is_loaded(monkeypatch, file):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: pytest.fail("loaded"))
    record = json.loads(Path(file).read_text())
    record["theta"][0] += 1
    Path("edited.json").write_text(json.dumps(record))
    done = run("solve", "game24", PUZZLES[0], "--compress", "arborkv:fit=edited.json")
    assert done.exit_code == USAGE
    assert "has been changed since it was written" in done.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "there are no problems"),
        ([*PUZZLES, "--out", "no/such/f.json"], "'no/such/f.json' cannot be written"),
        ([*PUZZLES, "--model", " "], "--model is empty"),
        ([*PUZZLES, "--kv-budget", "much"], "--kv-budget 'much' is no size in bytes"),
        ([*PUZZLES, "--strategy", "nope"], "no strategy 'nope'"),
    ],
)
def test_wrong_usage_is_a_sentence_before_a_model_is_loaded(monkeypatch, args, says):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: pytest.fail("loaded"))
    done = run("fit", "arborkv", "game24", *args)
    assert done.exit_code == USAGE, done.output
    assert says in done.stderr
    assert not Path("arborkv.json").exists()


def test_too_few_samples_write_no_file():
    done = run("fit", "arborkv", "game24", PUZZLES[0], "--set", "k=2", "--set", "b=1")
    assert done.exit_code == USAGE
    assert "a fit needs 10 of each kind" in done.stderr or "gave no answer with two thoughts" in done.stderr
    assert not Path("arborkv.json").exists()


def test_the_engine_of_a_fit_has_the_measuring_policy(monkeypatch):
    opened = []
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *how: opened.append(how) or player())
    run("fit", "arborkv", "game24", *PUZZLES, "--device", "cuda", "--kv-budget", "2GiB")
    [(model, device, dtype, memory)] = opened
    settings = EngineSettings(kv_budget=2 << 30, compress=MEASURING)
    assert (model, device, dtype, memory) == ("embedded", "cuda", "float32", settings)
    assert ArborKV(rehydrate=False) == MEASURING


def test_a_probe_is_fitted_shown_and_written(monkeypatch):
    asked = []
    fit = ProbeFit.load("embedded")

    def fit_probe(task, problems, **options):
        asked.append((task.name, problems, options["labels"], options["k"], options["width"], options["seed"]))
        return fit

    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: player())
    monkeypatch.setattr(probe, "fit_probe", fit_probe)
    done = run("fit", "probe", "game24", *PUZZLES, "--labels", "checker", "--k", 9, "--width", 3, "--seed", 2)
    assert done.exit_code == 0, done.output
    assert asked == [("game24", PUZZLES, "checker", 9, 3, 2)]
    said = " ".join(done.stdout.split())
    for part in ("other depths", f"{fit.heads[0].auc[0]:.3f}", f"{fit.thoughts} thoughts", "labelled by checker"):
        assert part in said
    assert ProbeFit.load("probe.json") == fit
    done = run("fit", "probe", "game24", *PUZZLES, "--json")
    assert ProbeFit.model_validate_json(done.stdout) == fit
    assert asked[-1][2] == "rollouts"
    assert run("fit", "probe", "game24", "1 2 3 4", "--labels", "guess").exit_code == USAGE
