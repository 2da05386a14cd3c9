"""Functions with unit tests: a thought is a program, the tests run in the sandbox, and what failed is shown to the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rksc_tot.core.errors import ConfigError, TaskError
from rksc_tot.core.task import Message, Path, Task
from rksc_tot.tasks.sandbox import Sandbox
from rksc_tot.tasks.sandbox.unit_tests import FORMS, UnitTest, check_tests, read_test, run_tests

_FORM = f'{{"question": "Write add(a, b).", "tests": [...]}} with tests {FORMS}'
_MOST_SHOWN = 3  # failures
PASSED = "All tests pass."


@dataclass(frozen=True)
class CodeProblem:
    """A question and its tests."""

    question: str
    tests: tuple[UnitTest, ...]


class Code(Task):
    """Code: a thought is a Python function; the problem's tests decide in the sandbox, and the model may correct it.

    A problem is a mapping with ``question`` and ``tests``. A path is complete when all tests pass. After a program that fails,
    the path goes on with what failed and asks for a corrected program.

    Parameters
    ----------
    sandbox : Sandbox
        Limits of the programs.
    """

    name = "code"
    stop = ("\n```",)
    keep_stop = False  # what follows a program closes its block
    end_completes = False
    max_thoughts = 3
    max_thought_tokens = 300
    temperature = 0.8
    observe_timeout = None  # the sandbox has its own limits

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self.sandbox = sandbox or Sandbox()

    def validate(self, problem: Any) -> CodeProblem:
        """The question and the tests."""
        if isinstance(problem, CodeProblem):
            return problem
        question = problem.get("question") if isinstance(problem, Mapping) else None
        tests = problem.get("tests") if isinstance(problem, Mapping) else None
        if not isinstance(question, str) or not question.strip():
            raise TaskError("the problem has no question", hint=f"give {_FORM}")
        if not isinstance(tests, list | tuple) or not tests:
            raise TaskError("the problem has no list of tests", hint=f"give {_FORM}")
        return CodeProblem(question, tuple(map(read_test, tests)))

    def prompt(self, problem: CodeProblem) -> list[Message]:
        """The question, and the first test as an example of a call; the reply begins inside a code block."""
        call = problem.tests[0].call
        asked = f"{problem.question}\nReply with the Python code only. It is called like this: {call}"
        return [{"role": "user", "content": asked}, {"role": "assistant", "content": "```python\n"}]

    async def observe(self, problem: CodeProblem, path: Path) -> str:
        """That all tests passed; or what failed, and the beginning of a corrected program."""
        report = await run_tests(self.sandbox, path[-1].text, problem.tests)
        if report.result.reason == "refused":
            raise ConfigError(report.result.detail)
        failures = [failure for failure in report.failures if failure is not None]
        if not failures:
            return f"\n```\n{PASSED}"
        shown = "\n".join(f"- {failure}" for failure in failures[:_MOST_SHOWN])
        return f"\n```\nTests failed: {len(failures)} of {len(report.failures)}.\n{shown}\nCorrected code:\n```python\n"

    def is_solution(self, problem: CodeProblem, path: Path) -> bool:
        """Whether all tests passed."""
        return bool(path) and (path[-1].observation or "").endswith(PASSED)

    def check(self, problem: CodeProblem, answer: str) -> bool | None:
        """Whether a program passes all tests, None if the sandbox refuses to run it."""
        report = check_tests(self.sandbox, answer, problem.tests)
        return None if report.result.reason == "refused" else report.share == 1.0
