"""Recompute: which claims of a thought are checked, where the model computes again, and what the score says."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError, VerifierError
from rksc_tot.core.task import function_task
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.search import Search
from rksc_tot.verifiers import Recompute
from rksc_tot.verifiers.language_model.recompute import equations, same_number, value_in

ASKED = re.compile(r"Compute ([\d,]+) \+ ([\d,]+)\. Reply")


def adder(*thoughts):
    """A writer of these thoughts that can add when it is asked to."""
    given = iter(thoughts)

    def write(text, rng):
        question = text.rpartition("\n")[2] if text.endswith("]") else text.splitlines()[-1]
        found = ASKED.search(question) or ASKED.search(text[-80:])
        numbers = [int(number.replace(",", "")) for number in found.groups()] if found else []
        return f"= {sum(numbers)}\n" if numbers else f"{next(given)}\n"

    return write


def make_search(verifier, writer, labeller=None, prompt="go\n", context=None, **options):
    task = function_task(prompt=lambda problem: prompt, is_solution=lambda problem, path: False)
    return Search(task, "p", MockEngine(writer, labeller, context), verifier, **options)


async def scored(search, n):
    level = await search.expand([search.root], n)
    await search.score(level)
    return level


@pytest.mark.parametrize("prompt", ["go\n", [{"role": "user", "content": "go"}]])
@pytest.mark.parametrize("of", ["parent", "thought"])
async def test_a_thought_scores_1_if_the_model_comes_to_the_same_value(of, prompt):
    search = make_search(
        Recompute(of=of), adder("17 + 5 = 22", "17 + 5 = 23", "so 20 + 1,000 = 1,020 g"), prompt=prompt
    )
    assert [node.score for node in await scored(search, 3)] == [1.0, 0.0, 1.0]
    assert search.ledger.verifier_tokens > 0
    assert search.ledger.prefill_tokens == search.ledger.distinct_tokens


async def test_after_the_parent_the_model_does_not_see_the_stated_value():
    seen = []
    write = adder("17 + 5 = 23")

    def writer(text, rng):
        seen.append(text)
        return write(text, rng)

    [node] = await scored(make_search(Recompute(), writer), 1)
    assert node.score == 0.0
    assert seen[-1] == "go\n\nCompute 17 + 5. Reply with the number only: "


async def test_the_worst_of_the_last_claims_counts():
    thought = "1 + 1 = 3, 2 + 2 = 4, 3 + 3 = 7"
    for most, score in ((1, 0.0), (2, 0.0)):
        assert [n.score for n in await scored(make_search(Recompute(most=most), adder(thought)), 1)] == [score]
    right_at_last = "1 + 1 = 3, 2 + 2 = 4, 3 + 3 = 6"
    for most, score in ((2, 1.0), (3, 0.0)):
        assert [n.score for n in await scored(make_search(Recompute(most=most), adder(right_at_last)), 1)] == [score]


async def test_without_a_claim_or_a_number_in_the_reply_the_score_is_unclear_and_the_latter_is_counted():
    search = make_search(Recompute(unclear=0.3), adder("it is easy"))
    assert [node.score for node in await scored(search, 1)] == [0.3]
    assert (search.ledger.abstentions, search.ledger.verifier_tokens) == (0, 0)
    prose = make_search(Recompute(unclear=0.3), lambda text, rng: "I cannot\n" if "Reply" in text else "1 + 1 = 2\n")
    assert [node.score for node in await scored(prose, 1)] == [0.3]
    assert prose.ledger.abstentions == 1


async def test_the_question_shows_the_recomputed_value_and_the_score_is_the_probability_of_yes():
    seen = []

    def labeller(text, question, labels):
        seen.append(question)
        return {"yes": 0.25, "Yes": 0.5}

    search = make_search(Recompute(compare="question"), adder("17 + 5 = 23"), labeller)
    [node] = await scored(search, 1)
    assert node.score == pytest.approx(1.0)
    assert seen == ["\nComputed again, 17 + 5 = 22. The step says 23. Is that the same number? Answer yes or no: "]


async def test_a_pattern_of_your_own_finds_claims_in_words_and_the_task_says_which_values_are_the_same():
    verifier = Recompute(pattern=r"the capital of (?P<work>\w+) is (?P<value>\w+)", prompt="\nCapital of {work}? ")
    writer = lambda text, rng: "PARIS\n" if text.endswith("? ") else "the capital of France is Paris\n"  # noqa: E731
    search = make_search(verifier, writer)
    [node] = await scored(search, 1)
    assert node.score == verifier.unclear  # no number in the reply
    numbers = make_search(
        Recompute(pattern=r"(?P<work>\w+): (?P<value>\d+)", prompt="\nHow many in {work}? "),
        lambda text, rng: "07\n" if text.endswith("? ") else "apples: 7\n",
    )
    assert [node.score for node in await scored(numbers, 1)] == [1.0]


async def test_replies_stay_within_the_token_budget():
    search = make_search(Recompute(), adder("17 + 5 = 22", "17 + 5 = 23"))
    await search.expand([search.root], 2)
    budget = Budget(tokens=search.ledger.tokens_sampled + 6)
    search = make_search(Recompute(), adder("17 + 5 = 22", "17 + 5 = 23"), budget=budget)
    assert [node.score for node in await scored(search, 2)] == [1.0, None]
    assert search.ledger.tokens_sampled == budget.tokens


async def test_a_question_too_long_for_the_context_is_an_error_of_its_node():
    with pytest.raises(VerifierError, match="leave no room"):
        await scored(make_search(Recompute(), adder("17 + 5 = 22"), context=40), 1)


@pytest.mark.parametrize("pattern", ["(", "(?P<work>a)", ""])
def test_a_pattern_without_its_groups_is_refused(pattern):
    with pytest.raises(ConfigError, match="verifier 'recompute': pattern: should"):
        Recompute(pattern=pattern)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("17 + 5 = 22", [("17 + 5", "22")]),
        ("She has 3 * $1,200.50 = $3,601.50 left.", [("3 * $1,200.50", "3,601.50")]),
        ("so (4 + 6) / 2 = 5, and 5 x 3 = 15", [("(4 + 6) / 2", "5"), ("5 x 3", "15")]),
        ("the total (7 - 9 = -2)", [("7 - 9", "-2")]),
        ("10 - 4 = 6 (left: 5 6 6)", [("10 - 4", "6")]),
        ("x = 5", []),
        ("5 = 5", []),
        ("the max = 7", []),
        ("2 + 2 =", []),
        ("", []),
    ],
)
def test_equations_are_found_with_an_operation_and_a_number(text, found):
    assert [tuple(claim) for claim in equations(text)] == found


@given(st.text(st.sampled_from("0123456789+-*/=(). x$,\n"), max_size=300))
def test_every_equation_has_an_operation_and_a_value(text):
    for claim in equations(text):
        assert re.search(r"\d.*\d", claim.work, re.DOTALL)
        assert value_in(claim.value) is not None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("1,020", "1020", True), ("3.50", "3.5", True), ("-2", "−2", True), ("2", "3", False), ("two", "2", False)],
)
def test_numbers_are_compared_by_value(one, other, same):
    assert same_number(one, other) is same
