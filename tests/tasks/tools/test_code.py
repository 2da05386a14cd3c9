import pytest

from rksc_tot import MockEngine, solve
from rksc_tot.core.errors import TaskError
from rksc_tot.strategies import BFS
from rksc_tot.tasks.sandbox import Sandbox, run
from rksc_tot.tasks.tools.code import Code

PROBLEM = {"question": "Write double(x).", "tests": ["assert double(2) == 4", "assert double('ab') == 'abab'"]}
PATIENT = Sandbox(seconds=120, cpu_seconds=60)
WRONG, RIGHT = "def double(x):\n    return x ** 2", "def double(x):\n    return x + x"


@pytest.fixture(autouse=True)
def on_a_system_with_a_sandbox(request):
    if "refuse" not in request.node.name and (missing := PATIENT.guarantees().missing):
        pytest.skip(f"this system cannot hold {missing}")


def test_a_program_that_fails_is_followed_by_what_failed_and_corrected():
    seen = []

    def writer(text, rng):
        seen.append(text)
        return f"{RIGHT if 'Corrected' in text else WRONG}\n```\nDone."

    result = solve(Code(PATIENT), PROBLEM, engine=MockEngine(writer), strategy="beam")
    assert result.answer == RIGHT
    assert result.correct
    assert f"```python\n{WRONG}\n```\nTests failed: 1 of 2.\n- double('ab') raised TypeError" in seen[-1]
    assert seen[-1].endswith("\nCorrected code:\n```python\n")
    assert "All tests pass." in [node.observation for node in result.tree][-1]


def test_a_hostile_program_is_a_thought_like_any_other():
    programs = iter(["import os\nos.kill(1, 9)\nos._exit(0)", "while True: print('x' * 999)", "def f(", RIGHT])
    engine = MockEngine(lambda text, rng: f"{next(programs)}\n```")
    result = solve(Code(PATIENT), PROBLEM, engine=engine, strategy=BFS(b=1, k=4), verifier="random")
    assert result.answer == RIGHT
    assert len([node for node in result.tree if node.depth == 1]) == 4


def test_the_check_runs_the_tests():
    task = Code(PATIENT)
    assert [task.check(task.validate(PROBLEM), program) for program in (RIGHT, WRONG)] == [True, False]


def test_a_search_says_why_the_sandbox_refuses(monkeypatch):
    monkeypatch.setattr(run.sys, "platform", "darwin")
    task = Code()
    with pytest.raises(TaskError, match="needs namespaces and seccomp of Linux"):
        solve(task, PROBLEM, engine=MockEngine(lambda text, rng: f"{RIGHT}\n```"), strategy="beam")
    assert task.check(task.validate(PROBLEM), RIGHT) is None


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        ("Write double(x).", "no question"),
        ({"tests": ["assert f()"]}, "no question"),
        ({"question": "f"}, "no list of tests"),
        ({"question": "f", "tests": []}, "no list of tests"),
        ({"question": "f", "tests": [1]}, "1 is not a test"),
    ],
)
def test_a_problem_without_question_or_tests_is_refused(problem, says):
    with pytest.raises(TaskError, match=says):
        Code().validate(problem)
