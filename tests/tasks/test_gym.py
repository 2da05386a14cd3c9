"""Tasks of reasoning-gym: names, seeds and scores are those of the package, and they hold the contract of tasks."""

import pytest

from rksc_tot.core.errors import ConfigError, MissingExtra
from rksc_tot.core.task import Path, Thought
from rksc_tot.tasks import gym, load_task
from tests.tasks import contract

SOME = ("chain_sum", "mini_sudoku", "prime_factorization", "zebra_puzzles")


def generators():
    """All installed generators; four of them run by default."""
    return [pytest.param(n, marks=() if n in SOME else pytest.mark.slow) for n in gym.gym_names() or SOME]


@pytest.fixture
def installed():
    return pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed (extra gym)")


@pytest.mark.parametrize("name", generators())
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # arc_agi leaves files open
def test_every_generator_holds_the_contract(installed, name):
    task = load_task(f"gym:{name}")
    assert task.name == f"gym:{name}"
    contract.refuses_bad_problems_with_a_sentence(task, all_of_them=True)
    contract.problems_follow_the_seed(task)
    [problem] = contract.problems_of(task, 1)
    contract.validates_twice_and_is_stable(task, problem)
    contract.never_raises_on_hostile_text(task, problem)
    contract.a_scripted_player_solves(task, problem)


def test_a_problem_is_the_first_of_its_seed(installed):
    entry = installed.create_dataset("chain_sum", seed=7, size=1)[0]
    task = load_task("gym:chain_sum")
    problem = task.validate("7")
    assert problem == task.validate(7) == gym.GymProblem(7, entry["question"])
    assert task.prompt(problem).startswith(entry["question"])
    assert task.check(problem, entry["answer"])
    assert not task.check(problem, entry["answer"] + "1")


def test_settings_reach_the_generator_and_wrong_ones_are_refused(installed):
    text = gym.GymTask("chain_sum", {"min_terms": 9, "max_terms": 9}).validate(0).text
    assert sum(text.count(f" {op} ") for op in "+-") == 8
    for settings in ({"min_terms": -5}, {"nothing": 1}):
        with pytest.raises(ConfigError, match="gym:chain_sum refuses its settings"):
            gym.GymTask("chain_sum", settings)


def test_an_unknown_generator_is_refused_with_the_known_ones(installed):
    for name in ("gym:chess", "gym:", "gym:composite"):
        with pytest.raises(ConfigError, match=r"no generator .* it has ab, acre"):
            load_task(name)


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(gym, "find_spec", lambda name: None)
    assert gym.gym_names() == []
    with pytest.raises(MissingExtra, match=r"rksc_tot\[gym\]"):
        load_task("gym:chain_sum")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 12", "12"), ("so\nAnswer:\n1 2\n3 4", "1 2\n3 4"), ("**Answer:** 12", "12"), ("answer: a\nAnswer: b", "b"),
        ("Answer:", None), ("the answer: 12", None), ("12", None),
    ],
)  # fmt: skip
def test_the_answer_is_what_follows_the_last_marker(installed, text, answer):
    task = load_task("gym:chain_sum")
    path = Path((Thought(text),))
    assert task.answer(task.validate(0), path) == answer
    assert task.is_solution(task.validate(0), path) == ("nswer" in text and "the" not in text)
