import pytest

from rksc_tot import MockEngine, solve
from rksc_tot.core.errors import TaskError
from rksc_tot.core.task import Path, Thought
from rksc_tot.tasks.tools.calculator import Calculator

PROBLEM = {"question": "How much are 17 crates of 23 bottles?", "answer": "391"}


def after(*lines):
    return Path(map(Thought, lines))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("calc: 17 * 23", "= 391"),
        ("Calc: (1 + 2) / 6", "= 0.5"),
        ("calc: 1 / 0", "= error, division by zero"),
        ("calc: __import__('os').getcwd()", "= error, '_' is no number and no operator"),
        ("calc: 9 ** 9 ** 9", "= error, the number is too large"),
        ("calc:", "= error, a number is missing at the end"),
        ("The crates are counted.", None),
        ("answer: 391", None),
    ],
)
def test_the_calculator_says_the_value_of_calc_lines_only(line, says):
    assert Calculator().observe(PROBLEM, after(line)) == says


def test_the_model_goes_on_with_the_value_and_answers():
    seen = []

    def writer(text, rng):
        seen.append(text)
        return "answer: 391\n" if text.endswith("= 391\n") else "calc: 17 * 23\n"

    result = solve("calculator", PROBLEM, engine=MockEngine(writer), strategy="beam")
    assert result.answer == "391"
    assert result.correct
    assert seen[-1].endswith("calc: 17 * 23\n= 391\n")
    assert result.ledger.observations >= 1


def test_a_value_that_the_model_writes_itself_is_rejected():
    result = solve("calculator", "1 + 1?", engine=MockEngine(lambda text, rng: "= 3\n"), strategy="beam")
    assert result.answer is None
    assert "only the calculator says values" in next(iter(result.rejections))


@pytest.mark.parametrize(
    ("answer", "correct"),
    [("391", True), ("391.0", True), ("$391", True), ("3,91", False), ("about 391", False), ("17*23", True)],
)
def test_answers_are_compared_as_numbers(answer, correct):
    assert Calculator().check(Calculator().validate(PROBLEM), answer) is correct


def test_a_problem_without_an_answer_is_not_checked():
    task = Calculator()
    assert task.check(task.validate("How much is 1 + 1?"), "2") is None


@pytest.mark.parametrize("problem", ["", " ", 5, {"answer": "1"}, {"question": 3}, None])
def test_a_problem_without_a_question_is_refused(problem):
    with pytest.raises(TaskError, match="the problem has no question - give"):
        Calculator().validate(problem)
