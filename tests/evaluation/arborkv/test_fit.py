"""``fit_arborkv``: θ is fitted to all samples, its separation is measured on held-out problems."""

import math

import numpy as np
import pytest

from rksc_tot import MockEngine, load_engine, solve
from rksc_tot.core.errors import ConfigError, TaskError
from rksc_tot.evaluation.arborkv import fit as arborkv
from rksc_tot.evaluation.arborkv import leave_one_out as samples
from rksc_tot.evaluation.arborkv.fit import MEASURING, fit_arborkv, interval
from rksc_tot.evaluation.arborkv.leave_one_out import Sample
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.arborkv_fit import ArborFit
from rksc_tot.strategies import BFS
from tests.evaluation.arborkv.conftest import PUZZLES


def made_up(problems, each=6, seed=0, slope=3.0):
    """Samples whose outcome depends on the value, by ``slope``."""
    rng = np.random.default_rng(seed)
    return [
        [
            Sample(value, rng.normal(), rng.random(), rng.random() < 1 / (1 + math.exp(-slope * value)))
            for value in rng.normal(size=each)
        ]
        for _ in range(problems)
    ]


@pytest.fixture
def sampled(monkeypatch):
    """Replace the searches by given samples; an exception among them is raised."""

    def use(found):
        queue = iter(found)

        async def given(setup, engine, problem):
            one = next(queue)
            if isinstance(one, Exception):
                raise one
            return one

        monkeypatch.setattr(samples, "samples_of", given)
        return [str(n) for n in range(len(found))]

    return use


def test_a_fit_is_found_on_the_embedded_model_and_holds_for_it(found, tmp_path):
    fit = found.fit
    assert (fit.problems, fit.task, fit.layers, fit.model) == (4, "game24", 8, "embedded")
    assert fit.changed >= 6 <= fit.samples - fit.changed
    assert fit.theta[0] > 0  # what the search thinks much of is missed
    low, high = found.interval
    assert 0.5 < low <= fit.separation <= high <= 1
    assert [feature.theta for feature in found.features] == list(fit.theta)
    fit.save(tmp_path / "f.json")
    compress = ArborKV(fit=str(tmp_path / "f.json"), tail=2)
    assert compress == ArborKV.from_fit(fit, tail=2)
    with load_engine(compress=compress, kv_budget="2MiB") as small:
        assert solve("game24", PUZZLES[0], engine=small, strategy=BFS(b=2, k=8)).answer is not None


def test_theta_is_fitted_to_all_samples(engine, sampled):
    found = fit_arborkv("game24", sampled(made_up(80)), engine=engine)
    theta, offset = arborkv.fit(*arborkv._arrays(made_up(80))[:2])
    assert (found.fit.theta, found.fit.offset) == (theta, offset)
    assert theta[0] > 1.5
    assert abs(theta[1]) < 0.5 > abs(theta[2])
    assert 0.8 < found.fit.separation < 1
    [value, entropy, _] = found.features
    assert value.alone > 0.8 > entropy.alone
    assert value.changed > 0.5 > -0.5 > value.unchanged


def test_uninformative_features_have_an_interval_around_chance(engine, sampled):
    found = fit_arborkv("game24", sampled(made_up(80, slope=0)), engine=engine)
    low, high = found.interval
    assert low < 0.5 < high
    assert high - low < 0.2


@pytest.mark.parametrize("problem", [0, 7])
def test_cross_fitting_never_values_a_problem_by_a_fit_on_it(problem):
    x, y, of = arborkv._arrays(made_up(20))
    values = arborkv._cross_fitted(x, y, of, 20, 0)
    lied = np.where(of == problem, ~y, y)
    other = arborkv._cross_fitted(x, lied, of, 20, 0)
    assert (other[of == problem] == values[of == problem]).all()
    assert (other[of != problem] != values[of != problem]).any()


def test_the_interval_resamples_problems_not_thoughts():
    """Ten thoughts that are one and the same tell no more than one of them."""
    values, y, of = np.random.default_rng(0).normal(size=60), np.arange(60) % 2 == 0, np.arange(60)
    alone = interval(values, y, of, 0)
    assert interval(np.repeat(values, 10), np.repeat(y, 10), np.repeat(of, 10), 0) == alone
    assert interval(values, y, of, 1) != alone
    assert interval(np.ones(4), np.ones(4, dtype=bool), np.arange(4), 0) is None


def test_separation_is_unknown_if_a_fold_lacks_a_kind(engine, sampled):
    kinds = [[Sample(float(n), 0.1, 0.2, changed) for n in range(12)] for changed in (True, False)]
    found = fit_arborkv("game24", sampled(kinds), engine=engine)
    assert (found.fit.separation, found.interval) == (None, None)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ([[], []], "2 searches gave no answer with two thoughts or more"),
        ([[Sample(1, 1, 1, False)] * 30], "of 30 thoughts that were left out, 0 changed the outcome"),
        ([[Sample(1, 1, 1, False)] * 30], "give more problems, or problems that the search solves"),
        (
            [[Sample(1, 1, 1, True)] * 30],
            "0 did not change the outcome; a fit needs 10 of each kind - give more problems, or other ones",
        ),
        ([[Sample(1, 1, 1, n < 5) for n in range(30)]] * 1, "5 changed the outcome.* - give about 3 problems"),
        ([[Sample(1, 1, 1, n < 10) for n in range(20)]], "all 20 blocks have the same search value"),
    ],
)
def test_too_few_samples_are_refused_with_a_hint(engine, sampled, found, says):
    with pytest.raises(ConfigError, match=says):
        fit_arborkv("game24", sampled(found), engine=engine)


def test_one_bad_problem_does_not_end_a_fit_and_all_bad_ones_do(engine, sampled):
    good = made_up(30)
    assert fit_arborkv("game24", sampled([*good, TaskError("bad")]), engine=engine).fit.problems == 30
    with pytest.raises(TaskError, match="worse"):
        fit_arborkv("game24", sampled([TaskError("worse"), TaskError("bad")]), engine=engine)


def test_the_same_problem_twice_is_refused(engine):
    with pytest.raises(ConfigError, match="'10 6 5 4' is the same problem as '4 5 6 10'"):
        fit_arborkv("game24", ["4 5 6 10", "10 6 5 4"], engine=engine)


@pytest.mark.parametrize(
    "how", [{}, {"compress": "arborkv"}, {"compress": "streaming"}, {"compress": MEASURING, "lossless": True}], ids=str
)
def test_an_engine_with_another_compression_policy_is_refused(how):
    with load_engine(**how) as other, pytest.raises(ConfigError, match="load it with compress=MEASURING"):
        fit_arborkv("game24", PUZZLES, engine=other)


def test_an_engine_without_kv_is_refused():
    with pytest.raises(ConfigError, match="'mock' has no KV to leave out"):
        fit_arborkv("game24", PUZZLES, engine=MockEngine(lambda text, rng: "x\n"))


def test_a_kv_budget_too_small_for_a_search_is_refused():
    with load_engine(compress=MEASURING, kv_budget="512KiB") as small:
        with pytest.raises(ConfigError, match="the KV of a search does not fit the KV budget - raise the KV budget"):
            fit_arborkv("game24", PUZZLES[:1], engine=small, strategy=BFS(b=3, k=12))
        small.check_integrity()


# -- what a fit holds for ------------------------------------------------------------------------------------------------


@pytest.fixture
def fit(engine):
    from rksc_tot.search.approximate.fingerprint import weights_of

    return ArborFit(
        model="embedded", weights=weights_of(engine), layers=8, task="game24", seed=0, date="2026-01-01", problems=2,
        samples=30, changed=15, separation=0.7, theta=(1, 2, 3), offset=0.5,
    )  # fmt: skip


def test_a_policy_has_the_theta_of_its_fit_and_no_other(fit):
    assert (ArborKV(fit=fit).theta, ArborKV(fit=fit).offset) == (fit.theta, 0.5)
    assert ArborKV(fit=fit, theta=fit.theta) == ArborKV(**ArborKV(fit=fit).model_dump(mode="json")) == ArborKV(fit=fit)
    for other in ({"theta": (1, 2, 4)}, {"theta": [0, 0, 0]}, {"offset": 0.0}):
        with pytest.raises(ConfigError, match="differs from that of the fit"):
            ArborKV(fit=fit, **other)
    with pytest.raises(ConfigError, match=r"'none\.json' cannot be read"):
        ArborKV(fit="none.json")


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"task": "poems"}, "task poems"), ({"weights": "0" * 64}, "weights 000"), ({"layers": 9}, "layers 9")],
)
def test_a_search_on_another_model_or_task_than_it_was_made_for_is_refused(fit, changes, says):
    with load_engine(compress=ArborKV.from_fit(fit)) as holds:
        result = solve("game24", PUZZLES[0], engine=holds, strategy=BFS(b=1, k=2))
        assert result.numerics["compression"]["fit"]["theta"] == [1, 2, 3]
    message = f"was made for {says}.* - make one with rksc-tot fit arborkv"
    other = load_engine(compress=ArborKV.from_fit(fit.model_copy(update=changes)))
    with other, pytest.raises(ConfigError, match=message):
        solve("game24", PUZZLES[0], engine=other, strategy=BFS(b=1, k=2))
