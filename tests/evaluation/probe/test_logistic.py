import numpy as np
import pytest

from rksc_tot.evaluation.probe.logistic import fit_logistic


def data(n=4000, h=6, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(3, 2, (n, h)) * np.logspace(-2, 2, h)
    weight = rng.normal(size=h) / np.logspace(-2, 2, h)
    p = 1 / (1 + np.exp(-(x @ weight - (x @ weight).mean())))
    return x, p, weight, rng


def test_the_weights_of_known_probabilities_are_found():
    x, p, weight, _ = data()
    found, offset = fit_logistic(x, p)
    assert found == pytest.approx(weight, rel=0.1)  # the ridge draws them towards 0
    assert 1 / (1 + np.exp(-(x @ found + offset))) == pytest.approx(p, abs=0.05)


def test_labels_of_zero_and_one_give_nearly_the_same():
    x, p, weight, rng = data()
    found, _ = fit_logistic(x, (rng.random(len(p)) < p).astype(float))
    assert np.corrcoef(x @ found, x @ weight)[0, 1] > 0.98


def test_a_constant_feature_has_no_weight_and_separable_data_have_finite_ones():
    x = np.column_stack([np.ones(40), np.arange(40.0)])
    found, offset = fit_logistic(x, (np.arange(40) >= 20).astype(float))
    assert found[0] == 0
    assert np.isfinite([*found, offset]).all()
    assert ((x @ found + offset > 0) == (np.arange(40) >= 20)).all()
