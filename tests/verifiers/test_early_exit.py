"""What a search may decide early: exits between layers, siblings that go unverified, and the audit of both."""

import json
import logging
import math

import pytest

from rksc_tot import RKSC, solve, stream
from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError
from rksc_tot.evaluation.calibration import Calibration
from rksc_tot.policies.early_exit.cgee import Margins, VerifySkip, confidence
from rksc_tot.search import Search
from rksc_tot.strategies import BFS
from rksc_tot.verifiers import LMValue
from tests.layered_mock import LAYERS, between, make_engine, make_task

EXIT = Margins(thresholds={3: 0.9})
SKIP = VerifySkip(confidence=0.3, margin=0.0)  # any group of two with a top branch likelier than that


def passed(rule):
    step = {"level": 0.0, "rule": rule.model_dump(), "n": 400, "k": 0, "p": 0.95**400, "saved": 0.5}
    return {"examples": 400, "walk": [step], "chosen": 0}


@pytest.fixture
def made(accepted):
    """A calibration that accepts what a test wants it to accept."""

    def make(**rules):
        record = json.loads(accepted.model_dump_json())
        for name in ("exit", "skip", "rivals"):
            record[name] = passed(rules[name]) if name in rules else {"examples": 0, "refused": "not wanted"}
        return Calibration.model_validate(record)

    return make


def run(rksc=None, engine=None, task=None, **options):
    engine = engine or make_engine()
    options = {"strategy": BFS(b=2, k=4)} | options
    return solve(task or make_task(), "p", engine=engine, rksc=rksc, **options)


def asked(result):
    return [node for node in result.tree if node.score is not None]


# -- exact by default ------------------------------------------------------------------------------------------------------


def test_without_switches_nothing_is_decided_early(made):
    plain, off, unused = run(), run(RKSC()), run(RKSC(calibration=made(exit=EXIT), exit=False))
    assert plain.tree == off.tree == unused.tree
    for result in (plain, off, unused):
        assert result.ledger.layer_exit.acted == result.ledger.verify_skip.acted == 0
        assert result.ledger.layers_saved == 0
    assert plain.settings["rksc"] is None
    assert {off.settings["rksc"][name] for name in ("exit", "skip", "rivals")} == {None}


def test_a_calibration_that_accepts_nothing_says_so_and_changes_nothing(made, caplog):
    with caplog.at_level(logging.WARNING, "rksc_tot"):
        result = run(RKSC(calibration=made()))
    assert "the calibration has no accepted rule; layer exit is off because not wanted" in caplog.text
    assert result.tree == run().tree


# -- layer exit ------------------------------------------------------------------------------------------------------------


def test_passes_stop_at_the_layer_of_the_rule_and_the_ledger_says_what_that_saved(made):
    full, early = run(), run(RKSC(calibration=made(exit=EXIT), audit=0))
    assert {node.layer for node in asked(early)} == {3}
    assert {node.layer for node in asked(full)} == {None}
    n = early.ledger.verifier_calls
    assert early.ledger.layer_exit.acted == n == len(asked(early))
    assert (early.ledger.verifier_layers, early.ledger.verifier_layers_full) == (3 * n, LAYERS * n)
    assert early.ledger.layers_saved == 0.5
    assert early.settings["rksc"]["exit"] == EXIT.model_dump()
    assert (early.settings["rksc"]["delta"], early.settings["rksc"]["alpha"]) == (0.05, 0.05)


def test_the_labels_of_a_node_are_those_read_at_its_layer(made):
    result = run(RKSC(calibration=made(exit=Margins(thresholds={1: 0.05})), audit=0))
    for node in asked(result):
        assert set(node.labels) == {"good", "bad"}  # what fell outside was not read
        assert sum(node.labels.values()) == pytest.approx(1)
        assert node.score == pytest.approx(node.labels["good"])
        assert max(node.labels.values()) == pytest.approx(0.55)  # a guess of the first layer


def test_events_and_the_stored_tree_say_at_which_layer(made):
    run_ = stream(
        make_task(), "p", engine=make_engine(), strategy=BFS(b=1, k=2), rksc=RKSC(calibration=made(exit=EXIT), audit=0)
    )
    scored = [event for event in run_ if event.kind == "scored"]
    assert {(event.layer, event.skipped) for event in scored} == {(3, False)}
    assert type(run_.result.tree).from_json(run_.result.tree.to_json()) == run_.result.tree


def test_audited_nodes_count_in_full_and_flips_are_counted(made):
    wrong = make_engine(between(wrong_but_sure=0.5))
    result = run(RKSC(calibration=made(exit=EXIT), audit=1.0), wrong, strategy=BFS(b=2, k=10))
    plain = run(engine=make_engine(), strategy=BFS(b=2, k=10))
    assert [node.score for node in asked(result)] == [node.score for node in asked(plain)]
    row = result.ledger.layer_exit
    assert row.acted == row.audited == len(asked(result))
    assert 0 < row.flips < row.audited
    assert result.ledger.layers_saved == 0
    assert all(node.layer is None and "outside" in node.labels for node in asked(result))


def test_the_audit_takes_its_share_by_seed_and_place(made):
    rksc = RKSC(calibration=made(exit=EXIT), audit=0.3)
    first, again = (run(rksc, strategy=BFS(b=3, k=20)) for _ in range(2))
    assert first.ledger.layer_exit == again.ledger.layer_exit
    assert 0 < first.ledger.layer_exit.audited < first.ledger.layer_exit.acted
    other = run(rksc, strategy=BFS(b=3, k=20), seed=1)
    assert {n.branch for n in asked(first) if n.layer} != {n.branch for n in asked(other) if n.layer}


def test_an_alarm_is_given_when_more_decisions_flip_than_promised(made, caplog):
    wrong = make_engine(between(wrong_but_sure=0.5))
    with caplog.at_level(logging.WARNING, "rksc_tot"):
        run(RKSC(calibration=made(exit=EXIT), audit=1.0), wrong, strategy=BFS(b=3, k=20))
    [message] = [record.getMessage() for record in caplog.records]
    assert "the calibration does not hold here: " in message
    assert "more than the allowed 5.00%" in message


def test_no_alarm_is_given_when_none_flip(made, caplog):
    with caplog.at_level(logging.WARNING, "rksc_tot"):
        run(RKSC(calibration=made(exit=EXIT), audit=1.0), strategy=BFS(b=3, k=20))
    assert not caplog.records


def test_a_question_with_other_labels_runs_to_its_end(made):
    def question(problem, path):
        from rksc_tot.core.task import Question

        return Question(" worth?", {"good": 1.0, "bad": 0.0} if len(path) == 1 else {"yes": 1.0, "no": 0.0})

    result = run(RKSC(calibration=made(exit=EXIT), audit=0), make_engine(first, first), make_task(question=question))
    assert {node.depth: node.layer for node in asked(result)} == {1: 3, 2: None}


def first(text, question, labels, layer=LAYERS):
    return {labels[0]: 0.99, labels[1]: 0.01}


# -- verify skip -----------------------------------------------------------------------------------------------------------


def test_decisive_siblings_are_not_asked_and_scored_by_their_confidence(made):
    result = run(RKSC(calibration=made(skip=SKIP), audit=0))
    groups = [result.tree.children(node) for node in result.tree if result.tree.children(node)]
    skipped = [group for group in groups if all(node.skipped for node in group)]
    assert skipped
    for group in groups:
        decisive = len(group) > 1 and max(confidence(node.logprobs) for node in group) >= 0.3
        assert {node.skipped for node in group} == {decisive}
    for node in (node for group in skipped for node in group):
        assert node.score == pytest.approx(math.exp(node.likelihood))  # worths are 0 and 1
        assert node.labels == {}
        assert node.layer is None
    ledger = result.ledger
    count = sum(map(len, skipped))
    assert ledger.verify_skip.acted == len(skipped)
    assert ledger.verifier_calls == len(asked(result)) - count
    assert ledger.verifier_layers_full == 0 + LAYERS * count  # the mock books questions that look between layers or not
    assert ledger.layers_saved > 0


def test_skipped_scores_lie_where_the_verifier_s_would(made):
    from rksc_tot.core.task import Question

    task = make_task(question=lambda problem, path: Question(" worth?", {"good": 20.0, "bad": -4.0}))
    calibration = made(skip=SKIP)
    from rksc_tot.search.approximate.fingerprint import task_fingerprint

    wording = task_fingerprint(task, calibration.probe.problem, calibration.probe.thoughts)
    calibration = calibration.model_copy(update={"prompt": wording.hash})
    result = run(RKSC(calibration=calibration, audit=0), task=task)
    skipped = [node for node in result.tree if node.skipped]
    assert skipped
    for node in skipped:
        assert node.score == pytest.approx(-4 + 24 * math.exp(node.likelihood))


def test_audited_groups_are_asked_in_full_and_compared(made):
    result = run(RKSC(calibration=made(skip=SKIP, exit=EXIT), audit=1.0), strategy=BFS(b=3, k=8))
    plain = run(strategy=BFS(b=3, k=8))
    assert result.tree == plain.tree
    row = result.ledger.verify_skip
    assert row.acted == row.audited > 0
    best = 0
    for node in result.tree:
        group = result.tree.children(node)
        if group:
            top = max(group, key=lambda child: confidence(child.logprobs))
            best += top.score < max(child.score for child in group)
    assert row.flips == best > 0
    assert result.ledger.layer_exit.acted == 0  # an audit of skips asks without exits


def test_skipped_nodes_cost_no_verifier_calls_of_the_budget(made):
    result = run(RKSC(calibration=made(skip=SKIP), audit=0), budget=Budget(verifier_calls=1), strategy=BFS(b=2, k=6))
    assert result.ledger.verifier_calls <= 1
    assert sum(node.skipped for node in result.tree) > 1


def test_skips_are_events(made):
    events = stream(
        make_task(), "p", engine=make_engine(), strategy=BFS(b=1, k=4), rksc=RKSC(calibration=made(skip=SKIP), audit=0)
    )
    skipped = {event.node for event in events if event.kind == "scored" and event.skipped}
    assert skipped == {node.id for node in events.result.tree if node.skipped} != set()


# -- what is refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verifier", ["likelihood", "lm_vote", "random"])
def test_another_verifier_is_refused(made, verifier):
    with pytest.raises(ConfigError, match=rf"was made with the verifier 'lm_value', and the search has '{verifier}'"):
        run(RKSC(calibration=made(exit=EXIT)), verifier=verifier)


def test_a_calibration_of_another_model_or_task_is_refused_before_anything_is_searched(made):
    rksc = RKSC(calibration=made(exit=EXIT))
    with pytest.raises(ConfigError, match="for another model or task: the layers"):
        run(rksc, make_engine(layers=9, writer=lambda text, rng: 1 / 0))
    with pytest.raises(ConfigError, match="the text of the prompt or question"):
        run(rksc, task=make_task(prompt=lambda problem: "another\n"))


def test_rival_stop_is_on_only_when_asked_for_and_only_if_it_was_accepted(made):
    from rksc_tot.policies.early_exit.cgee import RivalStop

    rule = RivalStop(confidence=0.9, margin=0.5)
    assert RKSC(calibration=made(rivals=rule)).rival_rule is None
    assert RKSC(calibration=made(rivals=rule), rivals=True).rival_rule == rule
    with pytest.raises(ConfigError, match="rivals is on, but the calibration has no rule for it: not wanted"):
        run(RKSC(calibration=made(exit=EXIT), rivals=True))
    with pytest.raises(ConfigError, match="rivals is on without a calibration"):
        run(RKSC(rivals=True))


@pytest.mark.parametrize("audit", [-0.1, 1.5, math.nan])
def test_an_audit_share_out_of_range_is_refused(audit):
    with pytest.raises(ConfigError, match=f"audit: .*not {audit}"):
        RKSC(audit=audit)


def test_a_calibration_may_be_given_as_its_file(made, tmp_path):
    calibration = made(exit=EXIT)
    calibration.save(tmp_path / "c.json")
    for file in (tmp_path / "c.json", str(tmp_path / "c.json")):
        assert run(RKSC(calibration=file, audit=0)).ledger.layers_saved == 0.5
    with pytest.raises(ConfigError, match=r"the calibration 'none.json' cannot be read"):
        run(RKSC(calibration="none.json"))


def test_a_value_that_is_not_an_rksc_is_refused():
    with pytest.raises(ConfigError, match=r"the rksc is \{\}, not of type RKSC - such as RKSC"):
        run({})


# -- what a promise does not cover is not decided early --------------------------------------------------------------------


async def children(made, **changes):
    """A search with verify skip on, and the root's children."""
    calibration = made(skip=SKIP).model_copy(update=changes)
    search = Search(make_task(), "p", make_engine(), LMValue(), rksc=RKSC(calibration=calibration, audit=0.0))
    return search, await search.expand([search.root], 6)


async def test_a_whole_group_is_skipped_and_each_of_it_rated_for_eviction(made, monkeypatch):
    rated = []
    monkeypatch.setattr(
        "rksc_tot.engine.mock.engine.MockEngine.rate", lambda self, handle, score, depth: rated.append(score)
    )
    search, nodes = await children(made)
    await search.score(nodes)
    assert all(node.skipped for node in nodes)
    assert rated == [node.score for node in nodes]


async def test_a_part_of_a_group_is_asked_about(made):
    search, nodes = await children(made)
    assert len(nodes) > 2
    await search.score(nodes[:-1])
    assert not any(node.skipped for node in nodes)
    assert search.ledger.verifier_calls == len(nodes) - 1


async def test_a_question_with_other_labels_than_were_calibrated_is_asked(made):
    search, nodes = await children(made, labels=("yes", "no"))
    await search.score(nodes)
    assert not any(node.skipped for node in nodes)


async def test_nodes_that_stand_on_approximate_kv_are_asked_in_full(made):
    search, nodes = await children(made)
    nodes[0].exact = False
    await search.score(nodes)
    assert not any(node.skipped for node in nodes)
    search = Search(make_task(), "p", make_engine(), LMValue(), rksc=RKSC(calibration=made(exit=EXIT), audit=0.0))
    nodes = await search.expand([search.root], 6)
    for node in nodes:
        node.exact = False
    await search.score(nodes)
    assert all(node.layer is None for node in nodes)
    assert search.ledger.layer_exit.acted == 0
