"""Rewards: when an answer is right, and which answers are the same."""

import pytest

from rksc_tot.core.errors import ConfigError, MissingExtra
from rksc_tot.tasks.rows import math_verify_process
from rksc_tot.tasks.rows.rewards import reward_for

COMPARED = [
    ("exact", " Paris. ", "paris", True),
    ("exact", "Paris", "London", False),
    ("numeric", "$1,234.00", "1234 dollars", True),
    ("numeric", "1 200 g", "1,200 kg", False),  # two numbers
    ("numeric", "1,200 g", "1200 kg", False),
    ("numeric", "1,200 g", 1200, True),
    ("numeric", "18 in total", "18 eggs", True),
    ("numeric", "0.5", "1/2", True),
    ("numeric", "50%", "50 percent", True),
    ("numeric", "3.1415927", "3.14159265", True),
    ("numeric", "3.14", "3.15", False),
    ("numeric", "many", "3", False),
    ("numeric", "1/0", "3", False),
    ("choice", "(b) because", "B", True),
    ("choice", "C", 2, True),
    ("choice", "a", "0", True),
    ("choice", "D", "A", False),
    ("json", '{"b": 2.0, "a": [1, true]}', {"a": [1, True], "b": 2}, True),
    ("json", "[1, 2]", "[2, 1]", False),
    ("json", "[true]", "[1]", False),
    ("json", "prose", "[1]", False),
    ("exact", "x", None, None),
    (lambda row, answer: answer == row["good"], "y", None, True),
    (lambda row, answer: 0.5, "y", None, False),
    (lambda row, answer: None, "y", None, None),
    ("operator:contains", "good", None, True),
]


def test_an_answer_is_compared_with_the_target():
    for reward, answer, target, right in COMPARED:
        found = reward_for(reward, "number").right({"good": "y"}, answer, target)
        assert found is right, (reward, answer, target)


@pytest.mark.parametrize(
    ("reward", "same"),
    [("numeric", ("18", "18.0", "$18", "18 eggs")), ("choice", ("B", "(b)", "b")), ("json", ('{"a":1}', '{ "a": 1.0 }')),
     ("exact", ("Paris.", " paris")), (lambda row, answer: True, ("18", "18.0"))],
)  # fmt: skip
def test_equal_answers_count_as_one_in_votes(reward, same):
    form = reward_for(reward, "number").form
    assert len({form(answer) for answer in same}) == 1
    assert form("other 17") not in {form(answer) for answer in same}


@pytest.mark.parametrize(
    ("reward", "target", "words"),
    [
        ("numeric", "yes", "is not one number"),
        ("choice", "maybe so", "is neither a letter"),
        ("json", "{", "is not JSON"),
    ],
)
def test_a_target_that_cannot_be_compared_is_a_fault(reward, target, words):
    assert words in reward_for(reward, "number").fault(target)


def test_the_reward_follows_from_the_form_of_the_answers():
    assert [reward_for(None, form).name for form in ("number", "choice", "json", "boxed")] == [
        "numeric", "choice", "json", "exact",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("reward", "words"), [("bleu", "there is no reward 'bleu' - there are exact"), (3, "reward is 3")]
)
def test_an_unknown_reward_is_refused_with_the_known_ones(reward, words):
    with pytest.raises(ConfigError, match=words):
        reward_for(reward, "number")


def test_without_math_verify_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(math_verify_process.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install rksc-tot\[math\]"):
        reward_for("math", "boxed")


def test_expressions_are_compared_and_one_that_never_ends_is_cut_off(monkeypatch):
    reward = reward_for("math", "boxed")
    assert reward.right({}, r"(x+1)^2", "x^2 + 2x + 1") is True
    assert reward.right({}, r"\frac{1}{3}", "0.25") is False
    assert reward.form("0.50") == reward.form("1/2")
    monkeypatch.setattr(math_verify_process, "SECONDS", 0.5)
    assert reward.right({}, "9^{9^{9^{9^9}}}", "9^{9^{9^9}}") is False
    monkeypatch.undo()
    assert reward.right({}, "2", "4/2") is True  # another process goes on
    math_verify_process._PROCESS._end()
