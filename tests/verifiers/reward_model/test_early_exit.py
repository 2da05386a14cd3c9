"""CGEE on a process reward model: the same rules, audits and refusals as for label questions."""

import asyncio
import datetime as dt

import pytest

from rksc_tot import RKSC, MockEngine, solve
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.task import Question
from rksc_tot.engine.base import STEP_LABELS, Account, LabelRequest
from rksc_tot.evaluation.calibration import Calibration
from rksc_tot.evaluation.calibration.examples import Traced
from rksc_tot.policies.early_exit.cgee import Margins, VerifySkip
from rksc_tot.search.approximate.fingerprint import task_fingerprint, weights_of
from rksc_tot.strategies import BFS
from rksc_tot.verifiers import LMValue
from tests.verifiers.reward_model.test_prm import PROBLEM, make_task, texts, words

LAYERS = 3
EXIT, SKIP = Margins(thresholds={2: 0.0}), VerifySkip(confidence=0.0, margin=0.0)


def likely(text, rng):
    return words(text, rng), -rng.random()


def passed(rule):
    step = {"level": 0.0, "rule": rule.model_dump(), "n": 400, "k": 0, "p": 0.98**400, "saved": 0.3}
    return {"examples": 400, "walk": [step], "chosen": 0}


def made(verifier, **rules):
    """A calibration for a reward model, with the rules that a test wants."""
    off = {"examples": 0, "refused": "not wanted"}
    engine, task = MockEngine(likely), make_task()
    return Calibration.model_validate({
        "model": "prm", "weights": weights_of(verifier.load()), "dtype": "float32", "layers": LAYERS, "task": "Task",
        "prompt": task_fingerprint(task, PROBLEM, []).hash, "probe": {"problem": PROBLEM}, "labels": STEP_LABELS,
        "verifier": verifier.fingerprint(), "writer": weights_of(engine), "strategy": {}, "delta": 0.05, "alpha": 0.05,
        "seed": 0, "problems": 500, "fitting": 100, "outside": 0, "date": dt.date(2026, 1, 1).isoformat(),
        **{name: passed(rules[name]) if name in rules else off for name in ("exit", "other", "skip", "rivals")},
    })  # fmt: skip


def run(verifier, rksc=None):
    verifier.load().clear()
    asks = {"question": lambda problem, path: Question("?", {"yes": 1, "no": 0})} if verifier.name == "lm_value" else {}
    return solve(
        make_task(**asks), PROBLEM, engine=MockEngine(likely), strategy=BFS(b=2, k=3), verifier=verifier, rksc=rksc
    )


def scored(result):
    return [node for node in result.tree if node.score is not None]


def test_passes_stop_at_the_layer_of_the_rule_and_later_steps_are_read_as_exactly(reward_model):
    verifier = reward_model()
    full, early = run(verifier), run(verifier, RKSC(calibration=made(verifier, exit=EXIT), audit=0))
    assert {node.layer for node in scored(full)} == {None}
    assert {node.layer for node in scored(early)} == {2}
    n = early.ledger.verifier_calls
    assert (early.ledger.verifier_layers, early.ledger.verifier_layers_full) == (2 * n, LAYERS * n)
    assert (
        early.ledger.verifier_tokens > full.ledger.verifier_tokens
    )  # kept steps are computed in full for the next ones
    deep = max(scored(early), key=lambda node: node.depth)
    assert deep.score == pytest.approx(traced(verifier.load(), texts(early.tree, deep))[1][1], abs=1e-5)


def traced(engine, steps):
    """The classes after every layer at the end of a path that is computed anew."""
    engine.clear()
    handles = [engine.open(PROBLEM, Account())]
    for step in steps:
        handles.append(engine.extend(handles[-1], step))
    [reply] = asyncio.run(engine.label([LabelRequest(handles[-1], "", STEP_LABELS, trace=True)], Account()))
    for handle in handles:
        engine.release(handle)
    return reply.trace


def test_every_reading_of_a_calibration_is_traced(reward_model):
    tracing = Traced(of=reward_model())
    result = solve(make_task(), PROBLEM, engine=MockEngine(likely), strategy=BFS(b=2, k=3), verifier=tracing)
    harvest = tracing.harvest(result.tree)
    assert len(harvest.traces) == result.ledger.verifier_calls > 0
    assert {len(trace) for trace in harvest.traces} == {LAYERS}
    assert harvest.labels == {STEP_LABELS}


def test_audited_readings_count_in_full(reward_model):
    verifier = reward_model()
    audited = run(verifier, RKSC(calibration=made(verifier, exit=EXIT), audit=1.0))
    assert [node.score for node in scored(audited)] == pytest.approx([node.score for node in scored(run(verifier))])
    row = audited.ledger.layer_exit
    assert row.acted == row.audited == audited.ledger.verifier_calls


def test_skipped_siblings_get_a_score_within_the_range(reward_model):
    verifier = reward_model("token_classes", output="difference")
    result = run(verifier, RKSC(calibration=made(verifier, skip=SKIP), audit=0))
    skipped = [node for node in result.tree if node.skipped]
    assert skipped
    assert all(-1 <= node.score <= 1 for node in skipped)
    assert result.ledger.verifier_layers == 0 < result.ledger.verifier_layers_full


def test_a_calibration_is_refused_for_another_verifier_head_or_writer(reward_model):
    verifier = reward_model()
    held = made(verifier, exit=EXIT)
    for other, says in (
        (LMValue(), "was made with the verifier 'prm', and the search has 'lm_value'"),
        (verifier.model_copy(update={"aggregate": "min"}), "was made with the verifier 'prm' with the settings"),
        (reward_model("outcome"), "another model or task: the weights"),
    ):
        with pytest.raises(ConfigError, match=says):
            run_with(other, RKSC(calibration=held))
    with pytest.raises(ConfigError, match="the thoughts: another model wrote them, now 'other' does"):
        run_with(verifier, RKSC(calibration=held), name="other")


def run_with(verifier, rksc, name="mock"):
    engine = MockEngine(likely)
    engine.name = name
    asks = {"question": lambda problem, path: Question("?", {"yes": 1, "no": 0})} if verifier.name == "lm_value" else {}
    return solve(make_task(**asks), PROBLEM, engine=engine, strategy=BFS(b=2, k=3), verifier=verifier, rksc=rksc)
