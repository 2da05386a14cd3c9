import math

import pytest
import torch

from rksc_tot.core.errors import ConfigError
from rksc_tot.policies.asks import ASKS, GATES, PromptReuse, Signals, layer_weights, mean_harm, sigma, variant_name

CALM = Signals(sigma=0.9, lead=2.0, entropy=1.0, harm=0.02)


def test_identical_states_have_sigma_one_and_opposite_ones_minus_one():
    states = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    assert sigma(states, states) == pytest.approx(1)
    assert sigma(states, -states) == pytest.approx(-1)
    assert sigma(states, 7 * states) == pytest.approx(1)


def test_sigma_is_the_papers_weighted_mean_of_cosines():
    a = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    b = torch.tensor([[0.0, 1.0], [1.0, 1.0]])  # cosines 0 and 1/√2
    first, second = math.exp(1.5 * 1 / 2), math.exp(1.5 * 2 / 2)
    assert sigma(a, b, 1.5) == pytest.approx(second / math.sqrt(2) / (first + second))
    assert sigma(a, b, 0.0) == pytest.approx(1 / math.sqrt(2) / 2)
    assert layer_weights(2, 1.5).tolist() == pytest.approx([first, second])


@pytest.mark.parametrize("broken", [float("nan"), 0.0])
def test_zero_or_nan_states_do_not_share(broken):
    states = torch.ones(3, 4)
    spoilt = states.clone()
    spoilt[1] = broken
    value = sigma(states, spoilt)
    assert math.isnan(value)
    assert "NaN" in PromptReuse(threshold=0.1, gate="sigma").objection(CALM._replace(sigma=value))
    assert "NaN" in PromptReuse(threshold=None).objection(CALM._replace(sigma=value))


@pytest.mark.parametrize("tau", [0.0, -0.1, 1.01, float("nan"), float("inf")])
def test_tau_out_of_range_is_refused_with_its_value(tau):
    for make in (lambda: ASKS(tau=tau), lambda: PromptReuse(threshold=tau, gate="sigma")):
        with pytest.raises(ConfigError, match=str(tau)):
            make()


@pytest.mark.parametrize(
    ("setting", "value"),
    [("threshold", float("nan")), ("recompute", -1), ("least", 0), ("audit", 1.5), ("audit", float("nan")),
     ("alpha", float("inf")), ("gate", "guess"), ("harm", {"w": 0.0}), ("harm", {"w": float("nan")})],
)  # fmt: skip
def test_settings_out_of_range_are_refused_by_name(setting, value):
    with pytest.raises(ConfigError, match=setting):
        PromptReuse(**{"threshold": 1.0, setting: value})


def test_threshold_none_keeps_every_branch():
    assert PromptReuse(threshold=None).objection(CALM._replace(harm=None, sigma=None)) is None


def test_every_gate_accepts_at_its_threshold_and_rejects_below():
    for gate, read in GATES.items():
        value = read(CALM)
        assert PromptReuse.model_construct(threshold=value, gate=gate).objection(CALM) is None
        assert gate in PromptReuse.model_construct(threshold=value + 1e-9, gate=gate).objection(CALM)


def test_safety_is_the_lead_in_standard_deviations_of_the_audited_noise():
    assert GATES["safety"](CALM) == pytest.approx(2.0 / 0.2)
    assert GATES["safety"](CALM._replace(harm=0.08)) == pytest.approx(2.0 / 0.4)


def test_harm_is_the_geometric_mean_of_kl_over_entropy():
    assert mean_harm([(0.02, 2.0), (0.08, 2.0)]) == pytest.approx(0.02)
    assert math.isfinite(mean_harm([(0.0, 0.0)]))  # exact, and only one token was likely


def test_a_prompt_variant_without_an_audit_is_rejected_by_safety():
    assert "audit" in PromptReuse(threshold=-1e9).objection(CALM._replace(harm=None))


def test_sigma_without_hidden_states_is_rejected():
    assert "hidden states" in PromptReuse(threshold=0.1, gate="sigma").objection(CALM._replace(sigma=None))


def test_a_pair_of_prompt_variants_is_named_without_the_problem():
    def name(before, after, problem):
        reference, branch = [1, 2, *problem, 3], [*before, *problem, *after]
        return variant_name(reference, branch, 2, len(before), len(problem))

    assert name([5], [6], [10, 11]) == name([5], [6], [20, 21, 22])
    assert len({name([5], [6], [10]), name([6], [5], [10]), name([5, 6], [], [10]), name([], [5, 6], [10])}) == 4
