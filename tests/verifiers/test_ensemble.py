"""Ensembles: how scores are combined, what a member's failure does, and weights that are learned."""

import json
import math
import random

import pytest

from rksc_tot.api.solve import solve
from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError, VerifierError
from rksc_tot.core.plugins.one_line import read_plug_in
from rksc_tot.core.task import Question, function_task
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.search import Search
from rksc_tot.verifiers import VERIFIERS, Ensemble, Likelihood, LMValue, Verifier, verifier
from rksc_tot.verifiers.ensemble import logistic_regression


class Fixed(Verifier):
    """Scores from a list."""

    name: str = "fixed"
    scores: tuple[object, ...] = (0.5,)
    between: tuple[float, float] | None = None

    async def score(self, search, nodes):
        return [self.failure(n, s) if isinstance(s, str) else s for n, s in zip(nodes, self.scores, strict=False)]

    def bounds(self, search, node):
        return self.between


class Raising(Verifier):
    name: str = "raising"

    async def score(self, search, nodes):
        raise KeyError("oh")


def make_search(verifier, **options):
    task = function_task(
        prompt=lambda problem: "go\n",
        is_solution=lambda problem, path: False,
        question=lambda problem, path: Question(" worth?", {"sure": 20, "no": 0}),
    )
    labeller = lambda text, question, labels: {"sure": 0.5}  # noqa: E731
    engine = MockEngine(lambda text, rng: (f"{rng.getrandbits(40)}\n", math.log(0.25)), labeller)
    return Search(task, "p", engine, verifier, **options)


async def scored(verifier, n=1, **options):
    search = make_search(verifier, **options)
    level = await search.expand([search.root], n)
    await search.score(level)
    return search, level


async def test_scores_are_combined_in_four_ways_and_shown_by_member():
    members = [Fixed(scores=(0.5,)), Fixed(scores=(0.2,))]
    for settings, score in (
        ({"combine": "mean"}, 0.35),
        ({"combine": "mean", "weights": [1, 3]}, 0.275),
        ({"combine": "min"}, 0.2),
        ({"combine": "product"}, 0.1),
        ({"combine": "learned", "weights": [2, -5], "bias": 1}, 1 / (1 + math.exp(-1))),
    ):
        _, [node] = await scored(Ensemble(members=members, **settings))
        assert node.score == pytest.approx(score), settings
        assert node.labels == {"fixed": 0.5, "fixed 2": 0.2}


async def test_members_with_known_bounds_are_brought_to_one_scale():
    _, [node] = await scored(Ensemble(members=[LMValue(), Likelihood()]))
    assert node.labels == pytest.approx({"lm_value": 20 * 1.0, "likelihood": 0.25})
    assert node.score == pytest.approx((1.0 + 0.25) / 2)
    _, [plain] = await scored(Ensemble(members=[LMValue(), Likelihood()], scale=False))
    assert plain.score == pytest.approx((20 + 0.25) / 2)


async def test_bounds_are_those_of_the_members_combined():
    one, two = Fixed(between=(-1.0, 2.0)), Fixed(between=(-3.0, 1.0))
    for settings, bounds in (
        ({"combine": "mean"}, (-2.0, 1.5)),
        ({"combine": "min"}, (-3.0, 1.0)),
        ({"combine": "product"}, (-6.0, 3.0)),
    ):
        assert Ensemble(members=[one, two], scale=False, **settings).bounds(None, None) == bounds, settings
    assert Ensemble(members=[one, two]).bounds(None, None) == (0.0, 1.0)
    learned = Ensemble(members=[one, two], combine="learned", weights=[1, -1], scale=False)
    assert learned.bounds(None, None) == pytest.approx((1 / (1 + math.exp(2)), 1 / (1 + math.exp(-5))))
    assert Ensemble(members=[one, Fixed()]).bounds(None, None) is None


@pytest.mark.parametrize("broken", [Fixed(scores=("is ill", 0.5)), Raising()])
async def test_if_a_member_fails_its_node_is_pruned_or_the_others_score_it(broken, caplog):
    members = [Fixed(scores=(0.25, 0.75)), broken]
    _, level = await scored(Ensemble(members=members, on_failure="drop"), 2)
    assert level[0].score == 0.25
    assert level[0].labels == {"fixed": 0.25}
    assert "the other members of the ensemble score it" in caplog.text
    if isinstance(broken, Fixed):
        _, level = await scored(Ensemble(members=members), 2)
        assert [node.score for node in level] == [None, 0.625]
        assert "is ill" in level[0].pruned
    with pytest.raises(VerifierError, match="no member could score it, the first because"):
        await scored(Ensemble(members=[Raising(), Raising()], on_failure="drop"))


async def test_a_member_without_a_score_for_lack_of_time_leaves_the_node_without_one():
    search = make_search(Ensemble(members=[Fixed(scores=(0.5,)), Fixed(scores=(None,))]), budget=Budget(seconds=1000))
    level = await search.expand([search.root], 1)
    assert await search.verifier.score(search, level) == [None]


async def test_a_member_that_returns_no_number_ends_the_search():
    with pytest.raises(VerifierError, match="'fixed' returned nan"):
        await scored(Ensemble(members=[Fixed(scores=(float("nan"),))]))


async def test_only_an_ensemble_of_free_members_is_free():
    assert Ensemble(members=["likelihood"]).free
    assert not Ensemble(members=["likelihood", "random"]).free
    search, _ = await scored(Ensemble(members="likelihood+likelihood:of=path"), 3)
    assert search.ledger.verifier_calls == 0


def test_members_are_written_as_names_tables_or_one_string():
    wanted = Ensemble(members=[LMValue(), Likelihood(of="path")], combine="min")
    for text in (
        "ensemble:lm_value+likelihood:of=path,combine=min",
        'ensemble:members=["lm_value","likelihood:of=path"],combine=min',
        'ensemble:members=["lm_value",{"name":"likelihood","of":"path"}],combine=min',
    ):
        assert read_plug_in(VERIFIERS, "--verifier", text, "") == wanted, text
    saved = json.loads(json.dumps(wanted.describe()))
    assert VERIFIERS.make(saved.pop("name"), **saved) == wanted


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"members": []}, "members"),
        ({"members": ["nope"]}, "there is no verifier 'nope'"),
        ({"members": [{"of": "path"}]}, "give its name"),
        ({"members": [3]}, "members"),
        ({"weights": [1.0]}, "1 weights for 2 members"),
        ({"weights": [0, 0]}, "give no mean"),
        ({"combine": "min", "weights": [1, 1]}, "has no weights"),
        ({"combine": "learned"}, "0 weights for 2 members"),
        ({"combine": "learned", "weights": [1, 1], "on_failure": "drop"}, "need the scores of all members"),
    ],
)
def test_bad_settings_are_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        Ensemble(**settings)


def test_learned_weights_find_the_member_that_tells_right_from_wrong():
    rng = random.Random(0)
    right = [rng.random() < 0.5 for _ in range(400)]
    features = [[0.7 * label + 0.3 * rng.random(), rng.random(), 1.0] for label in right]
    weights, bias = logistic_regression(features, right, 3, 1.0)
    assert weights[0] > 5 * abs(weights[1])
    assert weights[2] == 0  # always the same
    ensemble = Ensemble(members=[Fixed(), Fixed(), Fixed()]).fitted(features, right)
    assert (ensemble.combine, ensemble.weights, ensemble.bias) == ("learned", weights, bias)
    assert all((ensemble.combined(row) > 0.5) == label for row, label in zip(features, right, strict=True))


def test_learned_probabilities_equal_the_share_that_is_right_where_scores_say_nothing():
    features, right = [[0.5]] * 100, [n < 30 for n in range(100)]
    ensemble = Ensemble(members=[Fixed()]).fitted(features, right)
    assert ensemble.combined([0.5]) == pytest.approx(0.3, abs=1e-4)


@pytest.mark.parametrize(
    ("features", "right"), [([[1.0]], [True]), ([[1.0], [2.0]], [True]), ([[1.0], []], [True, False])]
)
def test_weights_cannot_be_learned_without_both_labels_and_all_scores(features, right):
    with pytest.raises(ConfigError):
        Ensemble(members=[Fixed()]).fitted(features, right)


async def test_features_are_the_scores_that_weights_are_learned_from():
    ensemble = Ensemble(members=[LMValue(), verifier(lambda problem, path: len(path), name="depth")])
    search, level = await scored(ensemble, 2)
    assert await ensemble.features(search, level) == [pytest.approx([1.0, 1.0])] * 2
    broken = Ensemble(members=[Fixed(scores=("is ill", 0.5))])
    assert await broken.features(search, level) == [None, [0.5]]


@pytest.mark.parametrize(
    ("combine", "scores", "says"),
    [
        ("product", (1e200, 1e200), "the product of fixed 1e+200, fixed 2 1e+200 for node 1 is no finite number"),
        ("mean", (1.7e308, 1.7e308), "the mean of fixed 1.7e+308, fixed 2 1.7e+308 for node 1 is no finite number"),
    ],
)
async def test_an_overflow_is_an_error_that_says_which_member_returned_what(combine, scores, says):
    ensemble = Ensemble(members=[Fixed(scores=(score,)) for score in scores], combine=combine)
    with pytest.raises(VerifierError) as raised:
        await scored(ensemble)
    assert says in str(raised.value)
    assert "let the members return smaller numbers" in raised.value.hint


def test_members_are_checked_before_a_search():
    written = []
    engine = MockEngine(lambda text, rng: written.append(text) or "x\n")
    task = function_task(prompt=lambda problem: "go\n", is_solution=lambda problem, path: False)
    for chosen in ("lm_value", Ensemble(members=["likelihood", "lm_value"])):
        with pytest.raises(ConfigError, match=r"the task has no question - write Task\.question or use another"):
            solve(task, "p", engine=engine, verifier=chosen)
    assert not written
