import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.core.errors import ConfigError, TaskError
from rksc_tot.core.task import Path, Reject, Thought
from rksc_tot.tasks.game24.task import Game24
from rksc_tot.tasks.game24.world import LARGEST, legal_steps

TASK = Game24()
SOLUTION = ("10 - 4 = 6 (left: 5 6 6)", "5 * 6 = 30 (left: 6 30)", "30 - 6 = 24 (left: 24)")


def walk(problem, lines, task=TASK):
    problem, path = task.validate(problem), Path()
    for line in lines:
        path = Path((*path, task.parse(problem, path, line)))
    return problem, path


@pytest.mark.parametrize("problem", ["4 5 6 10", "10 6 5 4", "4, 5,6 10", [4, 5, 6, 10], (10, 4, 6, 5)])
def test_a_problem_is_its_sorted_numbers(problem):
    assert TASK.validate(problem) == (4, 5, 6, 10)
    assert TASK.validate(TASK.validate(problem)) == (4, 5, 6, 10)


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        ("4 5 6", "'4 5 6' has 3 numbers"), ("", "'' has 0 numbers"), ("4 5 6 7 8", "has 5 numbers"),
        ("4 5 six 7", "'six' is not a whole number"), ("4 5 6 -7", "'-7'"), ("4 5 6 1.5", "'1.5'"), ("4 5 6 ٣", "'٣'"),
        ("4 5 6 200", "200 is larger than 199"), ("9" * 5000, "999..."), ([1, 2, True, 4], "'True'"),
        ("1 1 1 1", "no way to make 24 from 1 1 1 1"),
    ],
)  # fmt: skip
def test_an_invalid_problem_is_refused_with_a_hint(problem, names):
    with pytest.raises(TaskError) as caught:
        TASK.validate(problem)
    message = str(caught.value)
    assert names in message
    assert "such as 4 5 6 10" in message
    assert "\n" not in message
    assert len(message) < 160


def test_an_unknown_role_is_refused():
    with pytest.raises(ConfigError, match="no role 'chat'"):
        Game24(role="chat")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "empty"), ("   ", "empty"), ("hello", "not a step"), ("10 - 4 = 6", "not a step"),
        ("10 - 4 = 6 (left: 5 6 6) and", "not a step"), ("10 - 4 = 6 (left: 5 6 6", "not a step"),
        ("10 - 4 = 7 (left: 5 6 7)", "10 - 4 is not 7"), ("10 - 7 = 3 (left: 3 5 6)", "no 7"),
        ("5 + 5 = 10 (left: 6 10 10)", "no 5"), ("10 - 4 = 6 (left: 5 6)", "left are 5 6 6"),
        ("10 - 4 = 6 (left: 5 6 7)", "left are 5 6 6"), ("1" * 5000, "not a step"), ("[bold]x[/bold]", "not a step"),
        ("10 / 0 = 0 (left: 4 5 6)", "no 0"), ("10 - 4 = 6/0 (left: 5 6 6)", "not a step"), ("\x1b[2J", "not a step"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_rejected_with_the_reason(line, reason):
    with pytest.raises(Reject, match=reason):
        TASK.parse((4, 5, 6, 10), Path(), line)


def test_division_by_zero_is_rejected():
    with pytest.raises(Reject, match="is not"):
        TASK.parse((0, 4, 6, 10), Path(), "4 / 0 = 4 (left: 4 6 10)")


@given(st.text(max_size=200))
def test_any_text_is_a_thought_or_a_rejection(text):
    try:
        assert isinstance(TASK.parse((4, 5, 6, 10), Path(), text), Thought)
    except Reject as rejected:
        assert str(rejected)


def world_states():
    rng = random.Random(0)
    for size in (2, 3, 4):
        for top in (13, 30, LARGEST):
            yield from (tuple(sorted(rng.randint(0, top) for _ in range(size))) for _ in range(8))


@pytest.mark.parametrize("state", list(world_states()))
def test_the_parser_accepts_exactly_the_legal_steps_of_the_model_world(state):
    path = Path((Thought("", state),))
    accepted = set()
    for left, op, right in product(set(state), "+-*/", set(state)):
        rest = list(state)
        rest.remove(left)
        if right not in rest:
            continue
        rest.remove(right)
        for result in {left + right, left - right, left * right, left // right if right else -1}:
            after = tuple(sorted((*rest, result)))
            line = f"{left} {op} {right} = {result} (left: {' '.join(map(str, after))})"
            try:
                thought = TASK.parse((), path, line)
            except Reject:
                continue
            if 0 <= result <= LARGEST and not (op == "/" and left == 0):  # zero divided is zero times
                assert thought.state == after
                ordered = (*sorted((left, right)), op) if op in "+*" else (right, left, op)
                accepted.add((*ordered, result, after))
    assert accepted == {
        (*((s.left, s.right) if s.op in "+*" else (s.right, s.left)), s.op, s.result, s.after)
        for s in legal_steps(state)
    }


def test_a_solution_is_complete_answered_and_right():
    problem, path = walk("4 5 6 10", SOLUTION)
    assert [TASK.is_solution(problem, Path(path[:n])) for n in range(4)] == [False, False, False, True]
    assert TASK.answer(problem, path) == "(10 - 4) * 5 - 6"
    assert TASK.check(problem, TASK.answer(problem, path)) is True


def test_intermediate_fractions_are_exact():
    problem, path = walk(
        "3 3 8 8", ("8 / 3 = 8/3 (left: 3 8 8/3)", "3 - 8/3 = 1/3 (left: 1/3 8)", "8 / 1/3 = 24 (left: 24)")
    )
    assert TASK.answer(problem, path) == "8 / (3 - 8 / 3)"
    assert TASK.check(problem, TASK.answer(problem, path))


def test_equal_computations_vote_together():
    other = ("10 - 4 = 6 (left: 5 6 6)", "6 * 5 = 30 (left: 30 6)", "30 - 6 = 24 (left: 24)")
    assert TASK.answer(*walk("4 5 6 10", SOLUTION)) == TASK.answer(*walk("4 5 6 10", other))


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("(10 - 4) * 5 - 6", True), ("5*(10-4)-6", True), ("4 * 6", False), ("24", False), ("10 + 4 + 5 + 6", False),
        ("(10 - 4) * 5 - 6 + 0", False), ("(10 - 4) * 5 - 6 - 6 + 6", False), ("", False), ("x", False), (None, False),
        (5, False), (b"x", False),
        ("(10 - 4) * 5 - 6 # hi", False), ("10 / (5 - 5)", False), ("(" * 10_000, False),
    ],
)  # fmt: skip
def test_the_check_is_exact_and_uses_each_number_once(answer, right):
    assert TASK.check((4, 5, 6, 10), answer) is right


def test_states_merge_in_a_search_and_chains_keep_their_votes():
    problem, one = walk("4 4 6 8", ("4 + 6 = 10 (left: 4 8 10)",))
    _, other = walk("4 4 6 8", ("6 + 4 = 10 (left: 10 8 4)",))
    assert TASK.state_key(problem, one) == TASK.state_key(problem, other) == (4, 8, 10)
    assert hash(TASK.state_key(problem, one)) == hash((4, 8, 10))
    assert Game24(role="solve").state_key(problem, one) is None


def test_the_two_roles_ask_the_embedded_model_for_different_things():
    assert TASK.prompt((4, 5, 6, 10)) == "steps 4 5 6 10\n"
    assert Game24(role="solve").prompt((4, 5, 6, 10)) == "solve 4 5 6 10\n"
    question = TASK.question((4, 5, 6, 10), Path())
    assert question is not None
    assert dict(question.labels) == {"sure": 20, "likely": 1, "impossible": 0.001}
    assert Game24(role="solve").question((4, 5, 6, 10), Path()) is None
