"""``--verifier prm:FOLDER``: a process reward model beside a mock engine that plays the game of 24."""

import json

import pytest

from benchmarks.common.reward_models import save_reward_model
from rksc_tot.cache.kv_budget.shared_kv_budget import SharedKVBudget
from rksc_tot.cli.engine import share_budget
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.engine.transformers_engine.settings import EngineSettings
from rksc_tot.evaluation.calibration import Calibration
from rksc_tot.verifiers import PRM, LMValue
from tests.cli.commands.one_command import PUZZLE, assert_one_sentence, run
from tests.game24_player import write

WALK = ["--training-puzzles", "--most", "36", "--delta", "0.1", "--set", "k=3", "--set", "b=2"]


@pytest.fixture(autouse=True)
def mock(monkeypatch):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: MockEngine(write))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_reward_model("step_marker", tmp_path_factory.mktemp("prm"))


def test_solve_says_what_kind_of_model_it_found_and_scores_with_it(folder):
    result = run("solve", "game24", PUZZLE, "--verifier", f"prm:{folder},aggregate=min", "--set", "k=3")
    assert "Traceback" not in result.output
    shown = " ".join(result.stdout.split())
    assert "a two-layer head, read at a marker token after each step (Qwen2.5-Math-PRM style)" in shown
    assert "verifier prm" in shown
    record = json.loads(run("solve", "game24", PUZZLE, "--verifier", f"prm:{folder}", "--set", "k=3", "--json").stdout)
    assert record["settings"]["verifier"]["aggregate"] == "last"
    assert record["ledger"]["verifier_tokens"] > 0


def test_a_folder_without_a_reward_model_is_one_sentence(tmp_path):
    says = assert_one_sentence(run("solve", "game24", PUZZLE, "--verifier", f"prm:{tmp_path}"))
    assert "there is no config.json" in says


@pytest.mark.slow
def test_a_calibration_of_a_reward_model_is_for_that_model_only(folder, tmp_path):
    file = tmp_path / "c.json"
    done = run("calibrate", "game24", *WALK, "--verifier", f"prm:{folder}", "--out", str(file))
    assert done.exit_code in (0, 3), done.output
    record = Calibration.load(str(file))
    assert record.labels == ("incorrect", "correct")
    assert record.verifier["name"] == "prm"
    assert record.layers == 3
    other = run("solve", "game24", PUZZLE, "--verifier", f"prm:{folder},aggregate=min", "--calibration", str(file))
    assert "was made with the verifier 'prm' with the settings" in other.stderr
    assert "'lm_value'" in run("solve", "game24", PUZZLE, "--calibration", str(file)).stderr


def test_the_reward_model_shares_the_budget_and_the_device_unless_it_has_its_own():
    arguments = (None, "cuda:1", "float32", EngineSettings(kv_budget="64MiB"))
    verifier, (_, _, _, settings) = share_budget(PRM(folder="x"), arguments)
    assert isinstance(settings.kv_budget, SharedKVBudget)
    assert (verifier.kv_budget, verifier.device) == (settings.kv_budget, "cuda:1")
    assert settings.kv_budget.size == 64 << 20
    own, unchanged = share_budget(PRM(folder="x", kv_budget="1MiB", device="cpu"), arguments)
    assert (own.kv_budget, own.device, unchanged) == ("1MiB", "cpu", arguments)
    assert share_budget(LMValue(), arguments) == (LMValue(), arguments)
