import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.core.errors import ConfigError
from rksc_tot.policies.early_exit.cgee import (
    EntropyStable,
    Margins,
    RivalStop,
    VerifySkip,
    confidence,
    entropy,
    exit_layer,
    lead,
    likeliest,
)

SURE, UNSURE, OTHER = (0.98, 0.01, 0.01), (0.4, 0.35, 0.25), (0.01, 0.98, 0.01)
shares = st.floats(0, 1)


@st.composite
def traces(draw):
    rows = draw(st.lists(st.lists(st.floats(0.001, 1), min_size=3, max_size=3), min_size=2, max_size=8))
    return [tuple(p / sum(row) for p in row) for row in rows]


# -- layer exit ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trace", "layer"),
    [
        ([UNSURE, SURE, SURE, SURE], 3),
        ([SURE, UNSURE, SURE, SURE], None),
        ([SURE, SURE, OTHER, OTHER], 2),
        ([SURE, (0.9, 0.05, 0.05), SURE, SURE], None),  # low twice, but not stable
        ([UNSURE, UNSURE, UNSURE, UNSURE], None),  # stable, but not low
        ([UNSURE, UNSURE, SURE, SURE], None),  # only at the end
    ],
)
def test_the_papers_rule_wants_entropy_low_and_stable_on_two_consecutive_layers(trace, layer):
    assert exit_layer(EntropyStable(theta=0.5, epsilon=0.05, layers=(1, 2, 3)), trace) == layer


def test_both_entropies_must_be_low():
    assert exit_layer(EntropyStable(theta=0.5, epsilon=5, layers=(1, 2, 3)), [UNSURE, SURE, SURE, SURE]) == 3


def test_consecutive_means_consecutive_among_the_checked_layers():
    rule = EntropyStable(theta=0.5, epsilon=0.05, layers=(1, 3))
    assert exit_layer(rule, [SURE, UNSURE, SURE, SURE]) == 3


def test_margins_exit_at_the_first_layer_whose_threshold_is_reached():
    rule = Margins(thresholds={2: 0.9, 3: 0.1})
    assert exit_layer(rule, [SURE, SURE, UNSURE, UNSURE]) == 2
    assert exit_layer(rule, [SURE, UNSURE, SURE, UNSURE]) == 3
    assert exit_layer(rule, [SURE, UNSURE, UNSURE, UNSURE]) is None
    assert exit_layer(Margins(thresholds={1: lead(SURE)}), [SURE, OTHER]) == 1  # reached is enough


@given(traces(), st.dictionaries(st.integers(1, 8), shares, min_size=1))
def test_an_exit_is_below_the_last_layer_and_at_a_checked_one(trace, thresholds):
    layer = exit_layer(Margins(thresholds=thresholds), trace)
    assert layer is None or (layer in thresholds and layer < len(trace))


@given(traces(), st.floats(0.01, 2), st.floats(0.01, 2))
def test_looser_thresholds_never_exit_later(trace, theta, epsilon):
    layers = tuple(range(1, 9))
    strict = exit_layer(EntropyStable(theta=theta, epsilon=epsilon, layers=layers), trace)
    loose = exit_layer(EntropyStable(theta=2 * theta, epsilon=2 * epsilon, layers=layers), trace)
    assert strict is None or (loose is not None and loose <= strict)


def test_entropy_is_in_nats():
    assert entropy((0.5, 0.5)) == pytest.approx(math.log(2))
    assert entropy((1.0, 0.0)) == 0


def test_the_first_of_equal_labels_is_likeliest():
    assert likeliest((0.2, 0.4, 0.4)) == 1


# -- skip and rivals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("confidences", "decisive"),
    [
        ((0.9, 0.4, 0.1), True),
        ((0.9, 0.44), True),  # the lead is relative
        ((0.9, 0.46), False),  # (0.9 - 0.46) / 0.9 is below one half
        ((0.7, 0.1), False),  # not confident
        ((0.9,), False),  # nothing to be decided
        ((), False),
        ((0.0, 0.0), False),
    ],
)
def test_siblings_are_skipped_if_the_top_one_is_confident_and_leads(confidences, decisive):
    assert VerifySkip(confidence=0.8, margin=0.5).decisive(confidences) is decisive


@pytest.mark.parametrize(
    ("ended", "running", "decisive"),
    [
        ([0.9], [0.4, 0.1], True),
        ([0.9, 0.89], [0.4], True),  # those that have ended are no rivals
        ([0.9], [0.44], True),
        ([0.9], [0.5], False),
        ([0.7], [0.1], False),
        ([], [0.1], False),
        ([0.9], [], False),
    ],
)
def test_rivals_stop_once_a_branch_that_has_ended_is_decisive_over_all_that_run(ended, running, decisive):
    assert RivalStop(confidence=0.8, margin=0.5).decisive(ended, running) is decisive


def test_confidence_does_not_depend_on_length():
    assert confidence([math.log(0.5)] * 3) == pytest.approx(confidence([math.log(0.5)] * 30)) == pytest.approx(0.5)
    assert confidence([]) == 1


# -- what is refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EntropyStable(theta=0, epsilon=1, layers=(1, 2)), "theta: .*greater than 0, not 0"),
        (lambda: EntropyStable(theta=math.nan, epsilon=1, layers=(1, 2)), "theta: .*finite number, not nan"),
        (lambda: EntropyStable(theta=1, epsilon=-2, layers=(1, 2)), "epsilon: .*greater than 0, not -2"),
        (lambda: EntropyStable(theta=1, epsilon=1, layers=(1,)), "layers: .*at least 2"),
        (lambda: EntropyStable(theta=1, epsilon=1, layers=(0, 1)), "layers.0: .*, not 0"),
        (lambda: Margins(thresholds={}), "thresholds: .*at least 1"),
        (lambda: Margins(thresholds={1: 1.5}), "thresholds.1: .*less than or equal to 1, not 1.5"),
        (lambda: Margins(thresholds={1: math.nan}), "thresholds.1: .*finite number, not nan"),
        (lambda: VerifySkip(confidence=1.2, margin=0), "confidence: .*less than or equal to 1, not 1.2"),
        (lambda: VerifySkip(confidence=0.5, margin=math.nan), "margin: .*finite number, not nan"),
        (lambda: RivalStop(confidence=-0.1, margin=0), "confidence: .*greater than or equal to 0, not -0.1"),
    ],
)
def test_a_threshold_out_of_range_is_refused_with_its_value(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_rules_are_frozen():
    with pytest.raises(ConfigError, match="is frozen, its"):
        VerifySkip(confidence=0.5, margin=0.5).margin = 0.0
