import math

import pytest

from benchmarks.quality.prompt_reuse import Branch, _certified, _loosest, _mean, _outcome, measure, spearman
from benchmarks.quality.prompt_variants import LONG, SHORT, VARIANTS, with_other_numbers
from rksc_tot.policies.asks import Signals


def branch(lead, same, problem=0, kl=0.1, tokens=100, reused=80, variant="w"):
    return Branch(problem, False, variant, tokens, 5, reused, Signals(0.5, lead, 1.0, 0.5), kl, same)


def test_rank_correlation_is_spearmans_with_ties_averaged():
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(math.sqrt(3) / 2)
    assert spearman([1, 1, 1], [1, 2, 3]) == 0


def test_the_loosest_threshold_is_the_last_that_agrees_enough():
    ranked = [branch(200 - n, True) for n in range(150)] + [branch(10, False), branch(9, False)]
    assert _loosest(ranked, "safety") == 10  # one flip in 151 is within 1 %, two in 152 are not
    assert _loosest([branch(3, False), branch(2, True)], "safety") == math.inf


def test_a_rejected_branch_counts_as_no_reuse():
    found = _outcome([(branch(1, True), True), (branch(1, False, tokens=300), False)])
    assert found["reuse_asks"] == 80 / 400
    assert found["top1_agreement"] == 1
    assert (found["kept"], found["flips"], found["of"]) == (1, 0, 2)


def test_agreement_over_splits_is_computed_over_all_kept_branches():
    splits = [{"kept": 1, "flips": 1, "top1_agreement": 0.0}, {"kept": 9, "flips": 0, "top1_agreement": 1.0},
              {"kept": 0, "flips": 0, "top1_agreement": None}]  # fmt: skip
    assert _mean(splits)["top1_agreement"] == 0.9
    assert _mean([{"a": {"x": 1}}, {"a": {"x": 2, "why": "so"}}]) == {"a": {"x": 1.5, "why": "so"}}


def test_certification_needs_enough_branches_and_stops_at_the_first_failure():
    def outcome(threshold):
        return {"threshold": threshold}

    calm = [branch(1000 - n, True) for n in range(310)]
    assert _certified(calm, "safety", 0.01, outcome) == {"accepted": 1, "threshold": 1000 - 309}
    assert "299 are needed" in _certified(calm[:298], "safety", 0.01, outcome)["refused"]
    assert "1 flips" in _certified([branch(2000, False), *calm], "safety", 0.01, outcome)["refused"]
    late = [*calm[:300], branch(1, False), *[branch(0, True)] * 300]
    assert _certified(late, "safety", 0.01, outcome) == {"accepted": 1, "threshold": 1000 - 299}


def test_harm_is_estimated_on_other_problems_than_the_evaluated_ones():
    """Harm is estimated on the audited fifth only, and correlates with KL on the rest."""
    branches = [
        branch(5.0, True, problem, kl=0.01 * (1 + problem % 3) * (1 + 9 * (variant == "b")), variant=variant)
        for problem in range(20)
        for variant in "ab"
    ]
    figures = measure(dict.fromkeys((0, 4), branches))
    assert figures["gate_rank_correlation"]["safety"] > 0.8
    assert figures["reuse_asks"] == 0.8
    assert figures["of"] == 16


def test_problems_and_prompt_variants_are_distinct():
    assert len({*SHORT, *LONG}) == len(SHORT) + len(LONG) >= 40
    assert len(set(VARIANTS)) == 8
    assert with_other_numbers("3 boxes of 12", 2) == "5 boxes of 14"
