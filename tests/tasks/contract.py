"""What every task must hold, whoever wrote it: used for registered tasks and generators of reasoning-gym."""

from itertools import islice

import pytest

from rksc_tot.api.solve import solve
from rksc_tot.core.errors import TaskError
from rksc_tot.core.task import Path, Question, Reject, Thought
from rksc_tot.core.task.task_settings import prompt_fault
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.search.validation import problem_fault, question_fault

HOSTILE = (
    "", " ", "\n\n\t", "\x00", "\ud800",
    "<|im_end|></s>", "Answer:", "answer: ", "1", "-1", "0 / 0", "9" * 5000, "(" * 3000,
    "1 + 1 = 2", "1 + 1 = 2 (left: 2)", "1 2 3 4", "4 3 2 1", "across 1: zzzz", "down 9: a",
    "٣ + ٣ = ٦", "inf", "nan", "[[", '{"a": 1}',
    "é" * 400, "x" * 100_000, "1 " * 20_000, "-" * 500 + "1", "((1))", "1 / (1 - 1)", "None", "[1, 2", "\\boxed{1}",
)  # fmt: skip
NO_PROBLEMS = (
    None, True, 1.5, float("nan"), -1,
    10**30, b"1 2 3", object(), [], {}, (), [None], [[]], {"target": 1}, {1: 2}, [[1]] * 4, set(),
    "", " ", "\x00", "no such problem",
    "9" * 50_000, "1 2 3 ->", "0 mod 0", "\ud800", ["x"] * 16, "....",
    {"numbers": [1, 2], "target": None},
    {"across": 1, "down": 2}, {"across": ["a"], "down": ["b"]}, {"numbers": [1, float("nan")], "target": 3},
)  # fmt: skip


def problems_of(task, count=2, seed=0):
    return list(islice(task.generate_problems(seed), count))


def refuses_bad_problems_with_a_sentence(task, all_of_them):
    for bad in NO_PROBLEMS:
        try:
            task.validate(bad)
        except TaskError as error:
            text = str(error)
            assert text
            assert "\n" not in text
            assert len(text) < 400
            assert error.hint
        else:
            assert not all_of_them, f"{bad!r} is accepted"


def never_raises_on_hostile_text(task, problem):
    valid = task.validate(problem)
    assert prompt_fault(task.prompt(valid)) is None
    path = Path()
    for line in (*(task.solution(valid) or ()), None):
        for text in HOSTILE:
            uses_of_a_thought_raise_nothing(task, valid, path, text)
        if line is not None:
            path = Path((*path, task.parse(valid, path, line)))
            assert hash(task.state_key(valid, path)) is not None
    for text in HOSTILE:
        assert task.check(valid, text) in (True, False, None)
        hash(task.normalise(text))


def uses_of_a_thought_raise_nothing(task, problem, path, text):
    try:
        thought = task.parse(problem, path, text)
    except Reject as reason:
        assert str(reason)
        return
    assert isinstance(thought, Thought)
    longer = Path((*path, thought))
    hash(task.state_key(problem, longer))
    question = task.question(problem, longer)
    assert question is None or (isinstance(question, Question) and question_fault(question) is None)
    if task.is_solution(problem, longer):
        answer = task.answer(problem, longer)
        assert answer is None or isinstance(answer, str)
        if answer is not None:
            assert task.check(problem, answer) in (True, False, None)
            hash(task.normalise(answer))


def validates_twice_and_is_stable(task, problem):
    valid = task.validate(problem)
    assert task.validate(valid) == valid == task.validate(problem)
    assert problem_fault(valid) is None
    assert task.prompt(valid) == task.prompt(task.validate(problem))


def problems_follow_the_seed(task):
    assert problems_of(task, 5, 3) == problems_of(task, 5, 3)
    assert problems_of(task, 5, 3) != problems_of(task, 5, 4)


def a_scripted_player_solves(task, problem):
    lines = task.solution(task.validate(problem))
    if lines is None:
        pytest.skip("the task has no solver for this problem")
    prompt = task.prompt(task.validate(problem))
    task.max_thought_tokens = (
        max(task.max_thought_tokens, *map(len, lines)) + 9
    )  # tokens of the mock engine are characters
    stop = task.stop[0] if task.stop else ""

    def play(text, rng):
        written = text[len(prompt) :].count(stop) if isinstance(prompt, str) else 0
        return stop.join(lines[written:]) + stop if written < len(lines) else ""

    for strategy in ("cot", "bfs"):
        result = solve(task, problem, engine=MockEngine(play), strategy=strategy)
        assert result.correct in (True, None), (strategy, result.answer, result.rejected)
        assert result.answer is not None
