"""Each built-in verifier by what it means."""

import logging
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.core.errors import ConfigError, VerifierError
from rksc_tot.core.task import Question, function_task
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.search import Search
from rksc_tot.verifiers import VERIFIERS, Likelihood, LMValue, LMVote, RandomScores, Verifier

WORTH = {"sure": 20.0, "likely": 1.0, "impossible": 0.001}


def words(text, rng):
    return f"{rng.getrandbits(40)}\n"


def make_search(verifier, labeller=None, writer=words, context=None, seed=0, **options):
    options = {
        "prompt": lambda problem: "go\n",
        "is_solution": lambda problem, path: len(path) == 3,
        "question": lambda problem, path: Question(" worth?", WORTH),
    } | options
    return Search(function_task(**options), "p", MockEngine(writer, labeller, context), verifier, seed=seed)


async def one_level(search, n=3):
    level = await search.expand([search.root], n)
    await search.score(level)
    return level


# -- value -----------------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.001, 1), min_size=3, max_size=3))
async def test_value_is_the_expected_worth_of_the_label(weights):
    total = 1.25 * sum(weights)
    given = {label: weight / total for label, weight in zip(WORTH, weights, strict=True)}
    search = make_search(LMValue(), lambda text, question, labels: given)
    [node] = await one_level(search, 1)
    assert node.score == pytest.approx(sum(WORTH[label] * given[label] * 1.25 for label in WORTH))
    assert node.labels == pytest.approx({**{label: p * 1.25 for label, p in given.items()}, "outside": 0.2})


async def test_value_is_asked_on_the_path_of_the_node():
    seen = []

    def labeller(text, question, labels):
        seen.append((text, question, labels))
        return {"sure": 1.0}

    search = make_search(LMValue(), labeller)
    level = await one_level(search)
    assert seen == [(f"go\n{node.text}\n", " worth?", tuple(WORTH)) for node in level]
    assert search.ledger.verifier_tokens == 3 * len(" worth?")


async def test_value_warns_once_when_the_model_answers_something_else(caplog):
    search = make_search(LMValue(), lambda text, question, labels: {"sure": 0.2})
    with caplog.at_level(logging.WARNING, "rksc_tot"):
        level = await one_level(search)
        await search.score(await search.expand(level, 1))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "80%" in caplog.text


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (lambda problem, path: None, "the task has no question - write Task.question"),
        (lambda problem, path: 1 / 0, "question raised ZeroDivisionError"),
        (lambda problem, path: Question("?", {"a": 1.0}), "at least two"),
        (lambda problem, path: Question("?", {"a": math.nan, "b": 1.0}), "not a finite number"),
        (lambda problem, path: "good?", "not a Question"),
    ],
)
async def test_value_without_a_usable_question_is_an_error(question, message):
    with pytest.raises(VerifierError, match=rf"'lm_value' failed on node 1: .*{message}"):
        await one_level(make_search(LMValue(), question=question))


async def test_a_model_that_writes_something_else_is_warned_about_with_what_it_would_write(caplog):
    search = make_search(LMValue(), lambda text, question, labels: {"sure": 0.1, "likely": 0.1})
    label = search.engine.label

    async def reporting(requests, account):
        return [reply._replace(likeliest=(("\nThe", 0.6),)) for reply in await label(requests, account)]

    search.engine.label = reporting
    await one_level(search, 1)
    assert (
        "gave 80% of its probability to tokens outside the labels 'sure', 'likely', 'impossible'; its likeliest"
        in caplog.text
    )
    assert r"'\nThe' (60%) - word the question" in caplog.text


async def test_a_question_too_long_for_the_context_costs_only_its_node():
    def question(problem, path):
        return Question("?" * (100 if path[-1].text == long[0] else 1), WORTH)

    search = make_search(LMValue(), context=60, question=question)
    level = await search.expand([search.root], 3)
    long = [level[1].text]
    await search.score(level)
    assert [node.score is None for node in level] == [False, True, False]
    assert "leave no room" in level[1].pruned


# -- vote ------------------------------------------------------------------------------------------------------------------


def favour(number):
    return lambda text, question, labels: {
        number: 0.6,
        **{label: 0.4 / (len(labels) - 1) for label in labels if label != number},
    }


async def test_votes_are_shares_of_one():
    level = await one_level(make_search(LMVote(), favour("2")), 4)
    assert [node.score for node in level] == pytest.approx([0.4 / 3, 0.6, 0.4 / 3, 0.4 / 3])
    assert level[1].labels == pytest.approx({"2": 0.6, "outside": 0.0})


@given(st.integers(1, 40))
async def test_votes_of_all_ballots_add_up_to_one_and_no_ballot_is_longer_than_nine(n):
    sizes = []

    def labeller(text, question, labels):
        sizes.append(len(labels))
        return {}

    search = make_search(LMVote(), labeller)
    level = await one_level(search, n)
    assert sum(node.score for node in level) == pytest.approx(1)
    assert max(sizes, default=0) <= 9
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
    assert sum(sizes) == (n if n > 1 else 0)


async def test_votes_are_asked_where_the_candidates_part():
    seen = []

    def labeller(text, question, labels):
        seen.append((text, question))
        return {}

    search = make_search(LMVote(), labeller)
    level = await one_level(search, 2)
    siblings = await search.expand(level[:1], 2)
    await search.score(siblings)
    cousins = await search.expand(level, 1, round=1)
    await search.score(cousins)
    assert [text for text, _ in seen] == ["go\n", f"go\n{level[0].text}\n", "go\n"]
    assert f"1: {siblings[0].text}\n2: {siblings[1].text}\n" in seen[1][1]
    assert f"1: {level[0].text} / {cousins[0].text}\n" in seen[2][1]


async def test_a_candidate_cannot_write_more_than_its_own_bounded_line():
    seen = []
    texts = iter(["1: me\n2: me\n" * 100, "b" * 1000, "c"])

    def labeller(text, question, labels):
        seen.append(question)
        return {}

    search = make_search(
        LMVote(longest=50), labeller, writer=lambda text, rng: next(texts), stop=(), max_thought_tokens=2000
    )
    await one_level(search, 3)
    lines = seen[0].strip().splitlines()
    assert [line[:3] for line in lines[1:-1]] == ["1: ", "2: ", "3: "]
    assert max(map(len, lines)) < 60


async def test_a_ballot_too_long_for_the_context_is_held_in_halves():
    sizes = []

    def labeller(text, question, labels):
        sizes.append(len(labels))
        return {"1": 0.9, **{label: 0.1 / (len(labels) - 1) for label in labels[1:]}}

    level = await one_level(make_search(LMVote(), labeller, context=140), 8)
    assert max(sizes) <= 4
    assert sum(node.score for node in level) == pytest.approx(1)
    alone = await one_level(make_search(LMVote(), labeller, context=75), 3)
    assert [node.score for node in alone] == pytest.approx([1 / 3] * 3)


async def test_votes_in_a_chat_are_a_turn_of_the_user():
    seen = []

    def labeller(text, question, labels):
        seen.append(question)
        return {}

    await one_level(make_search(LMVote(), labeller, prompt=lambda problem: [{"role": "user", "content": "go"}]), 2)
    assert [message["role"] for message in seen[0]] == ["user"]


# -- likelihood ------------------------------------------------------------------------------------------------------------


async def test_likelihood_is_the_geometric_mean_of_the_token_probabilities():
    writer = lambda text, rng: ("ab\n" if "\n" in text[3:] else "a\n", -3.0 if "\n" in text[3:] else -1.0)  # noqa: E731
    search = make_search(Likelihood(), writer=writer)
    [first] = await one_level(search, 1)
    [second] = await search.expand([first], 1)
    await search.score([second])
    assert first.score == pytest.approx(math.exp(-1))
    assert second.score == pytest.approx(math.exp(-3))
    [whole] = await Likelihood(of="path").score(search, [second])
    assert whole.score == pytest.approx(math.exp((2 * -1 + 3 * -3) / 5))


async def test_proposed_thoughts_have_no_likelihood():
    search = make_search(Likelihood(), mode="propose")
    with pytest.raises(VerifierError, match="a thought that was proposed, or changed by parse, has no likelihood"):
        await one_level(search)


# -- random ----------------------------------------------------------------------------------------------------------------


async def test_random_scores_follow_from_the_seed_and_the_place_in_the_tree():
    alone, crowd, other = (make_search(RandomScores(), seed=seed) for seed in (0, 0, 1))
    a, b, c = await one_level(alone, 2), await one_level(crowd, 9), await one_level(other, 2)
    assert [node.score for node in a] == [node.score for node in b][:2]
    assert [node.score for node in a] != [node.score for node in c]
    assert len({node.score for node in b}) == 9
    assert all(0 <= node.score < 1 for node in b)


# -- registry --------------------------------------------------------------------------------------------------------------


def test_an_unknown_verifier_names_those_there_are():
    with pytest.raises(ConfigError, match=r"no verifier 'nope' - there are .*lm_value, lm_vote"):
        VERIFIERS.make("nope")


def test_a_verifier_must_be_written():
    with pytest.raises(NotImplementedError):
        Verifier().score(None, []).send(None)
