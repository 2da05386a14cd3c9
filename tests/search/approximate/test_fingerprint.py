"""Fingerprints of models and tasks, and early exits on the embedded model."""

import pytest
import torch

from rksc_tot import RKSC, Calibration, load_engine, solve
from rksc_tot.core.errors import ConfigError, TaskError
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.policies.early_exit.cgee import Margins
from rksc_tot.search.approximate.fingerprint import task_fingerprint, weights_of
from rksc_tot.strategies import BFS
from rksc_tot.tasks import load_task

PUZZLE = "4 5 6 10"


@pytest.fixture(scope="module")
def engine():
    with load_engine() as engine:
        yield engine


@pytest.fixture
def calibration(engine):
    task = load_task("game24")
    step = {"level": 0, "rule": Margins(thresholds={7: 0.0}).model_dump(), "n": 400, "k": 0, "p": 0, "saved": 0.1}
    wording = task_fingerprint(task, PUZZLE, [])
    off = {"examples": 0, "refused": "not tried"}
    return Calibration.model_validate(
        {
            "model": engine.name, "weights": weights_of(engine), "dtype": "float32", "layers": engine.layers,
            "task": "game24", "prompt": wording.hash, "probe": {"problem": PUZZLE}, "labels": wording.labels,
                "verifier": {"name": "lm_value"}, "writer": None, "strategy": {},
            "delta": 0.01, "alpha": 0.05, "seed": 0, "problems": 500, "fitting": 100, "outside": 0, "date": "2026-01-01",
            "exit": {"examples": 400, "walk": [step], "chosen": 0}, "other": off, "skip": off, "rivals": off,
        }
    )  # fmt: skip


def test_the_embedded_model_exits_where_the_rule_says(engine, calibration):
    result = solve("game24", PUZZLE, engine=engine, strategy=BFS(b=2, k=6), rksc=RKSC(calibration=calibration, audit=0))
    ledger = result.ledger
    assert ledger.layer_exit.acted == ledger.verifier_calls > 0
    assert ledger.verifier_layers * engine.layers == ledger.verifier_layers_full * 7
    for node in result.tree:
        assert (node.score is None) == (node.layer is None) == (not node.labels)
        assert node.layer in (None, 7)
    engine.check_integrity()


def test_auditing_everything_does_not_change_results(engine, calibration):
    strategy = BFS(b=2, k=6)
    audited = solve("game24", PUZZLE, engine=engine, strategy=strategy, rksc=RKSC(calibration=calibration, audit=1))
    plain = solve("game24", PUZZLE, engine=engine, strategy=strategy)
    assert [node.text for node in audited.tree] == [node.text for node in plain.tree]
    assert audited.ledger.layer_exit.audited == audited.ledger.verifier_calls
    assert audited.ledger.layers_saved == 0


def test_one_changed_weight_matrix_is_another_model(engine, calibration):
    before = weights_of(engine)
    norm = engine.model.model.layers[3].input_layernorm.weight
    with torch.no_grad():
        norm *= 1.001
        try:
            assert weights_of(engine) != before
            with pytest.raises(ConfigError, match=r"the weights: .* of 'embedded', now .* of 'embedded'"):
                solve("game24", PUZZLE, engine=engine, rksc=RKSC(calibration=calibration))
        finally:
            norm /= 1.001
            engine.clear()


def test_the_same_weights_loaded_again_are_the_same_model(engine):
    with load_engine() as again:
        assert weights_of(again) == weights_of(engine)


def test_an_engine_without_a_model_is_hashed_by_its_name():
    engine = MockEngine(lambda text, rng: "x\n")
    before = weights_of(engine)
    engine.name = "other"
    assert weights_of(engine) != before


def test_the_role_of_a_task_is_part_of_its_fingerprint():
    tree, chain = load_task("game24"), load_task("game24-chain")
    assert task_fingerprint(tree, PUZZLE, []).hash != task_fingerprint(chain, PUZZLE, []).hash
    assert task_fingerprint(chain, PUZZLE, []).labels == ()
    step = "10 - 4 = 6 (left: 5 6 6)"
    assert task_fingerprint(tree, PUZZLE, [step]).hash != task_fingerprint(tree, PUZZLE, []).hash
    with pytest.raises(TaskError, match="rejects the thought 'nonsense'"):
        task_fingerprint(tree, PUZZLE, ["nonsense"])
