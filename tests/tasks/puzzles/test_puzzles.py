"""The rules of the built-in puzzles; what all tasks share is in ``tests/tasks/test_contract.py``."""

import pytest

from rksc_tot.core.errors import TaskError
from rksc_tot.core.task import Path, Reject
from rksc_tot.tasks import load_task
from rksc_tot.tasks.puzzles.crossword import clues, columns, grids
from rksc_tot.tasks.puzzles.sudoku import all_grids, completions

CASES = {  # task: problem, thoughts before, {rejected thought: reason}
    "sudoku4": ("1..4.41.2.....21", ["1 2 3 4"], {
        "1 1 2 3": "column 2 of the row is 4", "3 4 1 1": "digit twice", "1 4 3 2": "column 3 of the row is 1",
        "2 4 1 3": "its quarter already holds 2", "3 4 1": "not a row", "3 4 1 2 and": "not a row",
    }),
    "countdown": ("3 5 6 9 -> 33", ["5 * 6 = 30 (left: 3 9 30)"], {
        "5 + 3 = 8 (left: 8 9 30)": "no 5 to use", "3 + 9 = 13 (left: 13 30)": "3 \\+ 9 is not 13",
        "3 - 9 = 6 (left: 6 30)": "3 - 9 is not 6", "9 / 2 = 4 (left: 4 30)": "no 2",
        "3 + 30 = 33 (left: 33)": "left are 9 33", "3 + 30 = 33": "not a step",
    }),
    "arithmetic": ("8 + 9 * 3 mod 7", ["8 + 9 = 18"], {
        "17 * 3 = 51": "begins with 17, not with 18", "18 + 3 = 21": "next operation is \\* 3", "18 * 3": "not a line",
    }),
    "crossword": (1, ["across 1: step"], {
        "down 1: away": "does not fit s___", "across 1: stop": "already step", "across 9: step": "not a line",
        "down 5: step": "the grid has 4", "down 2: tea": "the grid has 4",
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_thought_that_breaks_a_rule_is_rejected_with_the_reason(name):
    given, before, wrong = CASES[name]
    task = load_task(name)
    problem, path = task.validate(given), Path()
    for line in before:
        path = Path((*path, task.parse(problem, path, line)))
    for text, reason in wrong.items():
        with pytest.raises(Reject, match=reason):
            task.parse(problem, path, text)


ANSWERS = {
    "sudoku4": ("1..4.41.2.....21", {"1234 3412 2143 4321": True, "1234 3412 2143 4312": False, "1234": False}),
    "countdown": (
        "3 5 6 9 -> 33",
        {"5 * 6 + 3": True, "33": False, "3 * 9 + 6": True, "3 * 11": False, "5*6+3/0": False},
    ),
    "arithmetic": ("8 + 9 * 3 mod 7", {"2": True, " 2 ": True, "3": False, "two": False}),
    "crossword": (1, {"step wide aria nets": True, "STEP wide aria nets": True, "step wide aria": False}),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_checked_exactly(name):
    given, answers = ANSWERS[name]
    task = load_task(name)
    for answer, right in answers.items():
        assert task.check(task.validate(given), answer) is right, answer


REFUSED = {
    "sudoku4": {"11..............": "no solution", "1..4": "has 4 cells", "5" * 16: "'5' is not a cell"},
    "countdown": {
        "1 2 -> 99": "no way to make 99", "3 5 -> 3": "one of the numbers", "3 -> 5": "1 numbers, not 2 to 6",
        "1 2 3 4 5 6 7 -> 8": "7 numbers", "1 1000 -> 5": "1000 is not between", "1 2 -> 0": "target 0",
    },
    "arithmetic": {"8": "not a chain", "8 mod 0": "no remainder mod 0", "1" + " + 1" * 21: "21 operations",
        "8 / 2": "not a chain"},
    "crossword": {"33": "no crossword 33", "0": "no crossword 0", "one": "not a crossword"},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_problem_is_refused_with_what_is_wrong(name):
    for problem, says in REFUSED[name].items():
        with pytest.raises(TaskError, match=says):
            load_task(name).validate(problem)


def test_a_path_that_makes_the_target_early_is_complete():
    task = load_task("countdown")
    problem, path = task.validate({"numbers": [3, 5, 6, 9], "target": 33}), Path()
    for line, done in (("5 * 6 = 30 (left: 3 9 30)", False), ("3 + 30 = 33 (left: 9 33)", True)):
        path = Path((*path, task.parse(problem, path, line)))
        assert task.is_solution(problem, path) is done
    assert task.answer(problem, path) == "5 * 6 + 3" or task.check(problem, task.answer(problem, path))


def test_a_wrong_result_of_a_chain_is_a_thought_and_its_answer_is_wrong():
    task = load_task("arithmetic")
    problem = task.validate("8 + 9 % 7")
    path = Path((task.parse(problem, Path(), "8 + 9 = 18"),))
    path = Path((*path, task.parse(problem, path, "18 mod 7 = 4")))
    assert task.is_solution(problem, path)
    assert (task.answer(problem, path), task.check(problem, task.answer(problem, path))) == ("4", False)
    assert task.state_key(problem, path) == (2, 4)


def test_there_are_288_sudoku_grids_and_generated_puzzles_have_one_solution():
    task = load_task("sudoku4")
    assert len(set(all_grids())) == 288
    puzzles = task.generate_problems(1)
    for _ in range(10):
        assert len(completions(task.validate(next(puzzles)))) == 1


def test_every_word_of_the_crosswords_has_a_clue_and_no_grid_has_a_word_twice():
    assert len(set(grids())) == 32
    for rows in grids():
        words = (*rows, *columns(rows))
        assert len(set(words)) == 8
        assert set(words) <= set(clues())


def test_a_crossword_of_ones_own_is_checked_only_with_a_solution():
    task = load_task("crossword")
    own = {"across": ["a", "b"], "down": ["c", "d"]}
    assert task.check(task.validate(own), "ab cd") is None
    assert task.check(task.validate({**own, "solution": ["ab", "cd"]}), "ab cd") is True
    for wrong in (["abc", "cd"], ["ab"], ["a1", "cd"], "ab"):
        with pytest.raises(TaskError, match="solution"):
            task.validate({**own, "solution": wrong})


def test_words_in_another_order_are_the_same_state():
    task = load_task("crossword")
    problem = task.validate(1)
    keys = set()
    for order in (("across 1: step", "down 1: swan"), ("down 1: swan", "across 1: step")):
        path = Path()
        for line in order:
            path = Path((*path, task.parse(problem, path, line)))
        keys.add(task.state_key(problem, path))
    assert len(keys) == 1
