"""Drafts on compressed KV: right counts, and reports of failing policies."""

import pytest

from benchmarks.common.engine_recorder import EngineRecorder
from benchmarks.common.report import flat
from benchmarks.memory import lossless
from benchmarks.memory.lossless import carry_out, chains, compared, figures, policy
from rksc_tot import load_engine

PUZZLES = ["4 5 6 10", "1 2 3 4", "2 5 8 11", "3 3 8 8"]


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(lossless, "SAMPLED", 3)


def test_a_pass_over_the_budget_is_counted():
    with load_engine() as engine:
        recorder = EngineRecorder(engine)
        chains(engine, ["4 5 6 10"])
        assert recorder.overruns == 0 < recorder.held <= recorder.allocated
        held, recorder.budget = recorder.held, recorder.allocated - 1
        passes = recorder.passes
        chains(engine, ["1 2 3 4"])
        assert recorder.overruns == recorder.passes - passes
        assert recorder.held > held  # the first KV was not released


def test_a_pass_of_draft_rows_is_not_a_full_pass():
    plain = carry_out("chains", ["4 5 6 10"], None, None)
    drafted = carry_out("chains", ["4 5 6 10"], policy("identity", "chains"), None)
    assert lossless.NEW >= plain.full_passes == plain.passes > 20
    assert drafted.passes > drafted.full_passes > 0
    assert drafted.full_passes < plain.full_passes / 4
    assert plain.out == drafted.out
    assert plain.branches == lossless.SAMPLED + 1


def test_different_output_is_not_reported_as_identical(monkeypatch):
    monkeypatch.setattr(lossless, "Lossless", lambda: False)  # drafts without verification
    assert not compared("random_attention", "chains", PUZZLES[:2])["identical"]


def test_a_policy_that_keeps_all_has_every_draft_accepted_and_another_one_not():
    found = {(name, "chains"): compared(name, "chains", PUZZLES) for name in ("identity", "random_attention")}
    said = flat(figures(found))
    assert said["lossless_identical"] is said["drafted_is_accepted_and_rejected"] is True
    assert said["acceptance.identity"] == 1 > said["acceptance.random_attention"] > 0
    assert said["branches"] == len(PUZZLES) * (3 + 1)
    assert said["acceptance_tight.identity"] < 1  # where room is short, drafts are void
    assert said["overruns"] == 0
    assert all(0 < each["held"] <= each["budget"] for each in found.values())
    assert said["restored_tokens.random_attention"] > 0


@pytest.mark.parametrize(("part", "figure", "value"), [
    ("identical", "lossless_identical", False), ("balanced", "drafted_is_accepted_and_rejected", False),
    ("overruns", "overruns", 2), ("branches", "branches", 3),
])  # fmt: skip
def test_a_failing_policy_is_reported(part, figure, value):
    good = {
        "identical": True, "branches": 9, "drafted": 10, "accepted": 5, "drafted_tight": 10, "accepted_tight": 5,
        "balanced": True, "full_passes": 1, "plain_passes": 4, "passes": 6, "overruns": 0, "restored": 0,
    }  # fmt: skip
    said = figures({("a", "chains"): good, ("b", "chains"): good | {part: value}})
    assert said[figure] == value
    assert said["passes_saved"]["a"] == 0.75
    assert figures({("a", "chains"): good})[figure] == {"overruns": 0, "branches": 9}.get(figure, True)
