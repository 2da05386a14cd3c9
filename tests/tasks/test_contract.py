"""Every registered task, those of installed packages included, holds the contract of tasks."""

import inspect

import pytest

from rksc_tot.tasks import TASKS, load_task
from tests.tasks import contract

PUZZLES = ("arithmetic", "countdown", "crossword", "game24", "game24-chain", "sudoku4")
EXAMPLES = {  # of tasks that generate no problems
    "calculator": [{"question": "What is 17 times 23?", "answer": "391"}],
}


@pytest.fixture(params=TASKS.names())
def task(request):
    return load_task(request.param)


@pytest.fixture
def problems(task):
    found = contract.problems_of(task) or EXAMPLES.get(task.name)
    if not found:
        pytest.skip("the task generates no problems")
    return found


def test_a_task_has_a_name_and_a_docstring(task):
    assert task.name
    assert inspect.getdoc(type(task))


@pytest.mark.parametrize("name", PUZZLES)
def test_a_puzzle_task_refuses_every_bad_problem(name):
    contract.refuses_bad_problems_with_a_sentence(load_task(name), all_of_them=True)


def test_a_bad_problem_is_accepted_or_refused_with_a_sentence(task):
    contract.refuses_bad_problems_with_a_sentence(task, all_of_them=False)


def test_no_method_raises_on_hostile_text(task, problems):
    for problem in problems:
        contract.never_raises_on_hostile_text(task, problem)


def test_a_problem_is_validated_to_the_same_value_each_time(task, problems):
    for problem in problems:
        contract.validates_twice_and_is_stable(task, problem)


@pytest.mark.parametrize("name", PUZZLES)
def test_the_seed_decides_which_problems_come(name):
    contract.problems_follow_the_seed(load_task(name))


def test_a_perfect_scripted_player_solves_each_problem(task, problems):
    for problem in problems:
        contract.a_scripted_player_solves(task, problem)


@pytest.mark.parametrize("name", PUZZLES)
def test_every_puzzle_task_has_problems_and_a_solver(name):
    task = load_task(name)
    for problem in contract.problems_of(task, 20):
        assert task.solution(task.validate(problem))
