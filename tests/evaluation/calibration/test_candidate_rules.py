"""Candidates keep, on the fitting part, to the share of errors they were made for."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from rksc_tot.evaluation.calibration.candidate_rules import entropy_rules, gate_rules, levels, margin_rules
from rksc_tot.evaluation.calibration.examples import SiblingGroup, moments_of, try_exit, try_rivals, try_skip
from rksc_tot.policies.early_exit.cgee import RivalStop, VerifySkip, confidence, exit_layer, likeliest, survivors

DELTA = 0.2
few = st.sampled_from((0.1, 0.3, 0.7, 0.9))  # so that many leads are equal
rows = st.lists(few, min_size=4, max_size=4).map(lambda shares: tuple((share, 1 - share) for share in shares))
branches = st.lists(
    st.tuples(st.lists(st.floats(-2, 0), min_size=1, max_size=5).map(tuple), st.sampled_from((0.0, 0.5, 1.0))),
    min_size=2,
    max_size=5,
)


def group(found):
    logprobs, scores = zip(*found, strict=True)
    return SiblingGroup(tuple(map(confidence, logprobs)), scores, moments_of(logprobs, scores))


@given(st.lists(rows, min_size=1, max_size=120))
def test_margins_keep_to_their_level_at_every_layer(traces):
    for level, rule in margin_rules(traces, DELTA):
        acted, errors = Counter(), Counter()
        for trace in traces:
            layer = exit_layer(rule, trace)
            if layer is not None:
                acted[layer] += 1
                errors[layer] += likeliest(trace[layer - 1]) != likeliest(trace[-1])
        assert all(errors[layer] <= level * acted[layer] for layer in acted)


@settings(max_examples=30)
@given(st.lists(rows, min_size=1, max_size=80))
def test_entropy_rules_keep_to_their_level(traces):
    for level, rule in entropy_rules(traces, DELTA):
        verdicts = [verdict for trace in traces if (verdict := try_exit(rule, trace)) is not None]
        assert sum(verdict.wrong for verdict in verdicts) <= level * len(verdicts)


@settings(max_examples=30)
@given(st.lists(branches.map(group), max_size=30))
def test_skip_and_rival_rules_keep_to_their_level(groups):
    for kind, trial in ((VerifySkip, try_skip), (RivalStop, try_rivals)):
        for level, rule in gate_rules(kind, trial, groups, DELTA):
            verdicts = [verdict for each in groups if (verdict := trial(rule, each)) is not None]
            assert sum(verdict.wrong for verdict in verdicts) <= level * len(verdicts)


@given(branches, st.sampled_from((0.0, 0.2, 0.5, 0.9)), st.sampled_from((0.0, 0.2, 0.5, 0.9)))
def test_what_is_tried_on_rivals_is_what_a_search_does(found, least, margin):
    rule = RivalStop(confidence=least, margin=margin)
    logprobs, scores = zip(*found, strict=True)
    verdict, ended = try_rivals(rule, group(found)), survivors(rule, logprobs)
    assert (verdict is None) == (ended is None)
    if verdict is not None:
        assert verdict.wrong == (max(scores[n] for n in ended) < max(scores))
        assert 0 < verdict.saved < 1


def test_levels_begin_with_no_error_and_end_at_twice_delta():
    assert levels(0.01)[0] == 0
    assert levels(0.01)[-1] == 0.02
    assert levels(0.9)[-1] == 1
    assert levels(0.01) == sorted(levels(0.01))


def test_nothing_to_be_made_of_nothing():
    assert margin_rules([], DELTA) == entropy_rules([], DELTA) == gate_rules(VerifySkip, try_skip, [], DELTA) == []


def test_the_walk_begins_with_stricter_thresholds_than_those_that_fit_without_an_error():
    sure = tuple((0.5 + 0.4 * n / 40, 0.5 - 0.4 * n / 40) for n in range(1, 5))
    traces = [tuple(((p + n / 400), 1 - (p + n / 400)) for p, _ in sure) for n in range(40)]
    rules = [rule for level, rule in margin_rules(traces, DELTA) if level == 0]
    first = [rule.thresholds[1] for rule in rules if 1 in rule.thresholds]
    assert len(first) > 1
    assert first == sorted(first, reverse=True)
