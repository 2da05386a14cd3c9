"""θ by logistic regression, and the file of a fit."""

import datetime as dt
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.core.errors import ConfigError
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.arborkv_fit import ArborFit, fit, separation
from rksc_tot.policies.compression.base import ThoughtBlock

TRUE, OFFSET = np.array([1.5, -0.8, 4.0]), -0.5


def samples(n, seed=0, theta=TRUE, offset=OFFSET):
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(2, 1, n), rng.gamma(2, 1, n), rng.beta(2, 5, n)])
    return x, rng.random(n) < 1 / (1 + np.exp(-(x @ theta + offset)))


def loss(x, y, theta, offset, ridge):
    logits = x @ np.array(theta) + offset
    penalty = ridge / 2 * np.sum((np.array(theta) * x.std(0)) ** 2)
    return float(np.logaddexp(0, logits).sum() - y @ logits + penalty)


def test_many_samples_recover_theta():
    theta, offset = fit(*samples(40_000))
    assert theta == pytest.approx(TRUE, rel=0.1)
    assert offset == pytest.approx(OFFSET, abs=0.15)


@pytest.mark.parametrize("ridge", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_fit_is_a_minimum_of_the_loss(ridge, seed):
    x, y = samples(60, seed)
    theta, offset = fit(x, y, ridge)
    best = loss(x, y, theta, offset, ridge)
    for step in (1e-4, -1e-4):
        for at in range(3):
            moved = np.array(theta)
            moved[at] += step
            assert loss(x, y, moved, offset, ridge) > best
        assert loss(x, y, theta, offset + step, ridge) > best


def test_the_fit_does_not_depend_on_units():
    x, y = samples(200)
    theta, offset = fit(x, y)
    scaled, moved = fit(x * [1000, 0.001, 1] + [5, 0, -3], y)
    assert np.array(scaled) * [1000, 0.001, 1] == pytest.approx(theta, rel=1e-6)
    assert moved + np.dot(scaled, [5, 0, -3]) == pytest.approx(offset, rel=1e-6, abs=1e-9)


def test_separable_samples_have_a_finite_theta():
    x = np.column_stack([np.arange(40.0), np.zeros(40), np.ones(40)])
    theta, offset = fit(x, np.arange(40) >= 20)
    assert 0 < theta[0] < 10
    assert theta[1:] == (0.0, 0.0)  # they are the same everywhere
    assert -offset / theta[0] == pytest.approx(19.5, abs=1)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_a_steep_or_lopsided_problem_converges(scale):
    x, _ = samples(500)
    y = np.zeros(500, dtype=bool)
    y[np.argmax(x[:, 0])] = True
    x = x * scale
    theta, offset = fit(x, y, ridge=1e-3)
    best = loss(x, y, theta, offset, 1e-3)
    assert best < loss(x, y, (0, 0, 0), math.log(1 / 499), 1e-3)
    assert all(loss(x, y, np.array(theta) * (1 + step), offset, 1e-3) > best for step in (1e-3, -1e-3))


@pytest.mark.parametrize(("seed", "ridge"), [(2065, 1e-5), (2080, 1e-5), (2229, 1e-5), (52, 0.1), (161, 0.1)])
def test_an_overshooting_step_is_halved(seed, ridge):
    """With the first three, Newton's plain steps end at a loss of millions, or at no number."""
    x = np.random.default_rng(seed).standard_t(1, (40, 3))
    y = np.zeros(40, dtype=bool)
    y[np.argsort(x[:, 0])[-3:]] = True
    theta, offset = fit(x, y, ridge)
    best = loss(x, y, theta, offset, ridge)
    for step in (1e-3, -1e-3):
        assert loss(x, y, np.array(theta) * (1 + step), offset, ridge) > best
        assert loss(x, y, theta, offset + step, ridge) > best


def test_unknown_features_count_as_0_as_in_the_policy():
    x, y = samples(300)
    x[::3, 0] = np.nan
    filled = np.where(np.isnan(x), 0.0, x)
    assert fit(x, y) == fit(filled, y)
    theta, offset = fit(x, y)
    policy = ArborKV(theta=theta, offset=offset)
    row = ThoughtBlock(9, *x[0], distance=0, protected=False, start=9)
    assert policy.value(row) == pytest.approx(1 / (1 + math.exp(-(filled[0] @ theta + offset))))


def test_the_effect_is_a_yes_or_no_of_any_type():
    x, y = samples(50)
    assert fit(x, y) == fit(x.tolist(), y.astype(int).tolist())


@pytest.mark.parametrize(
    ("features", "effect", "message"),
    [
        (np.zeros((0, 3)), [], "of 0 blocks that were left out, none changed"),
        (np.eye(3), [0, 0, 0], "of 3 blocks that were left out, none changed the outcome - fit on more problems"),
        (np.eye(3), [1, 1, 1], "of 3 blocks that were left out, every one changed"),
        (np.ones((3, 3)), [0, 1, 0], "all 3 blocks have the same search value, boundary entropy, attention"),
        (np.full((2, 3), np.nan), [0, 1], "all 2 blocks have the same"),
        (
            np.eye(3)[:, :2],
            [0, 1, 0],
            r"shape \(3, 2\) and the effects \(3,\) - give arrays of shape \[n, 3\] and \[n\]",
        ),
        (np.eye(3), [0, 1], r"shape \(3, 3\) and the effects \(2,\)"),
        (np.zeros(3), [0, 1, 0], r"shape \(3,\)"),
        (np.diag([1, np.inf, 1]), [0, 1, 0], "a feature is infinite"),
        (np.eye(3), [0, 0.5, 1], "neither true nor false"),
        (np.eye(3), [0, np.nan, 1], "neither true nor false"),
    ],
)
def test_invalid_samples_are_refused_with_the_reason(features, effect, message):
    with pytest.raises(ConfigError, match=message):
        fit(features, effect)


@pytest.mark.parametrize("ridge", [0, -1, math.nan])
def test_a_ridge_that_is_not_positive_is_refused_with_its_value(ridge):
    with pytest.raises(ConfigError, match=f"ridge is {ridge}"):
        fit(*samples(50), ridge=ridge)


# -- separation --------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
def test_separation_is_the_probability_of_a_higher_value_with_an_effect(rows):
    values, effect = [value for value, _ in rows], [had for _, had in rows]
    pairs = [(a > b) + (a == b) / 2 for a, had in rows if had for b, other in rows if not other]
    assert separation(values, effect) == (pytest.approx(np.mean(pairs)) if pairs else None)


def test_a_fit_separates_held_out_samples():
    theta, offset = fit(*samples(2000))
    x, y = samples(2000, seed=1)
    assert separation(x @ theta + offset, y) > 0.7
    assert separation(x @ theta + offset, np.random.default_rng(2).permutation(y)) == pytest.approx(0.5, abs=0.05)


# -- the file ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def made():
    return ArborFit(
        model="tiny",
        weights="0123456789abcdef",
        layers=6,
        task="game24",
        seed=7,
        date=dt.date(2026, 1, 2),
        problems=20,
        samples=300,
        changed=40,
        separation=0.71,
        theta=(0.1, -1 / 3, 2e-7),
        offset=-1.25,
    )


def same(**changes):
    return {"model": "tiny", "weights": "0123456789abcdef", "layers": 6, "task": "game24"} | changes


def test_a_saved_record_loads_unchanged(made, tmp_path):
    made.save(tmp_path / "f.json")
    assert ArborFit.load(tmp_path / "f.json") == made
    assert ArborFit.load(str(tmp_path / "f.json")).theta == made.theta
    assert len((tmp_path / "f.json").read_text().splitlines()) > 12  # a person can read it


def test_a_policy_takes_theta_from_its_fit(made):
    policy = ArborKV.from_fit(made, decay=0.1)
    assert (policy.theta, policy.offset, policy.decay) == (made.theta, made.offset, 0.1)


def checked(fit, *, model, weights, layers, task):
    policy = ArborKV.from_fit(fit)
    policy.check_task(task)
    policy.check_model(model, layers, lambda: weights)


def test_a_fit_holds_for_its_model_under_any_name(made):
    checked(made, **same())
    checked(made, **same(model="the same one, moved"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "poems"}, "task game24 of 'tiny', not poems"),
        ({"layers": 7, "model": "other"}, "layers 6 of 'tiny', not 7 of 'other'"),
        (
            {"weights": "f123456789abcdef"},
            r"weights 0123456789ab of 'tiny', not f123456789ab of 'tiny' \(another dtype changes the weights\)",
        ),
        ({"weights": "f123456789abcdef", "model": "b"}, "weights 0123456789ab of 'tiny', not f123456789ab of 'b'"),
    ],
)
def test_another_model_or_task_is_refused_with_the_difference(made, changes, message):
    with pytest.raises(ConfigError, match=f"was made for {message} - make one with rksc-tot fit arborkv"):
        checked(made, **same(**changes))


def edited(made, file, change):
    made.save(file)
    record = json.loads(file.read_text())
    change(record)
    file.write_text(json.dumps(record))
    return file


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(theta=[1, 2, 3]), "has been changed since it was written"),
        (lambda r: r.update(seal="0"), "has been changed since it was written"),
        (lambda r: r.update(theta=[1, 2]), "theta"),
        (lambda r: r.update(offset=math.nan), "offset: "),
        (lambda r: r.update(separation=1.5), "separation: .*1.5"),
        (lambda r: r.update(changed=0), "0 of 300 blocks changed the outcome; a fit needs some of both kinds"),
        (lambda r: r.update(changed=300), "300 of 300 blocks changed the outcome"),
        (lambda r: r.update(schema_version=2), "schema_version"),
        (lambda r: r.pop("weights"), "weights must be given"),
        (lambda r: r.update(extra=1), "there is no setting 'extra'"),
        (lambda r: r.pop("seal"), "is not a fit of ArborKV - make one with"),
    ],
)
def test_an_edited_file_is_refused_in_one_line_that_names_the_fault(made, tmp_path, change, message):
    with pytest.raises(ConfigError, match=f"f.json' .*{message}") as caught:
        ArborFit.load(edited(made, tmp_path / "f.json", change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "\x00", "[" * 100_000])
def test_a_file_without_a_record_is_refused(tmp_path, text):
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(ConfigError, match=r"f.json' is not a fit of ArborKV"):
        ArborFit.load(tmp_path / "f.json")


def test_a_file_that_cannot_be_read_or_written_is_named(made, tmp_path):
    with pytest.raises(ConfigError, match=r"the fit of ArborKV '.*none.json' cannot be read: No such file"):
        ArborFit.load(tmp_path / "none.json")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"b.json' cannot be read: .*utf-8"):
        ArborFit.load(tmp_path / "b.json")
    with pytest.raises(ConfigError, match=r"no/f.json' cannot be written: No such file"):
        made.save(tmp_path / "no" / "f.json")
