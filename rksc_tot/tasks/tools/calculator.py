"""Word problems with a calculator: the model writes an expression, the calculator says its value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rksc_tot.core.errors import TaskError
from rksc_tot.core.task import Message, Path, Reject, Task, Thought
from rksc_tot.tasks.tools.arithmetic import calculate, shown_value

CALC, ANSWER = "calc:", "answer:"
_FORM = 'a string, or a mapping such as {"question": "What is 17 times 23?", "answer": "391"}'
_INSTRUCTIONS = (
    "Solve the problem in short steps, one on each line. Never calculate yourself: write a line such as\n"
    "calc: 12 * 7 + 3\n"
    "and the next line gives you the value. When you know the result, write it in a line such as\n"
    "answer: 87"
)
_EXAMPLE = (
    "A crate holds 12 bottles. There are 7 crates and 3 single bottles. How many bottles are there?",
    "The crates and the single bottles are added.\ncalc: 12 * 7 + 3\n= 87\nanswer: 87",
)


class Calculator(Task):
    """Calculator: word problems; a line ``calc: 12 * 7`` is followed by its value, ``answer: 84`` completes the path.

    A problem is a string, or a mapping with ``question`` and, for reports, ``answer``.
    """

    name = "calculator"
    max_thoughts = 10
    max_thought_tokens = 64
    end_completes = False
    temperature = 0.7

    def validate(self, problem: Any) -> dict[str, str | None]:
        """The question, and the right answer or None."""
        given = {"question": problem} if isinstance(problem, str) else problem
        if (
            not isinstance(given, Mapping)
            or not isinstance(given.get("question"), str)
            or not given["question"].strip()
        ):
            raise TaskError("the problem has no question", hint=f"give {_FORM}")
        answer = given.get("answer")
        return {"question": given["question"], "answer": None if answer is None else str(answer)}

    def prompt(self, problem: dict[str, str]) -> list[Message]:
        """The instructions, an example, and the question."""
        question, reply = _EXAMPLE
        return [
            {"role": "user", "content": f"{_INSTRUCTIONS}\n\nProblem: {question}"},
            {"role": "assistant", "content": reply},
            {"role": "user", "content": f"Problem: {problem['question']}"},
        ]

    def parse(self, problem: Any, path: Path, text: str) -> Thought:
        """A line. A line that begins with ``=`` is rejected: only the calculator says values."""
        line = text.strip()
        if not line:
            raise Reject("the thought is empty")
        if line.startswith("="):
            raise Reject("only the calculator says values")
        return Thought(line)

    def observe(self, problem: Any, path: Path) -> str | None:
        """The value of a ``calc:`` line, or what is wrong with its expression."""
        expression = _after(CALC, path)
        if expression is None:
            return None
        try:
            return f"= {shown_value(calculate(expression))}"
        except ValueError as reason:
            return f"= error, {reason}"

    def is_solution(self, problem: Any, path: Path) -> bool:
        """Whether the last line is an answer."""
        return _after(ANSWER, path) is not None

    def answer(self, problem: Any, path: Path) -> str | None:
        """What follows ``answer:``."""
        return _after(ANSWER, path) or None

    def normalise(self, answer: str) -> object:
        """The number, if the answer is one."""
        text = super().normalise(answer)
        try:
            return calculate(str(text).lstrip("$€£"))
        except ValueError:
            return text

    def check(self, problem: dict[str, str | None], answer: str) -> bool | None:
        """Whether the answer is the right number or text; None if the problem has no right answer."""
        right = problem["answer"]
        return None if right is None else self.normalise(answer) == self.normalise(right)


def _after(mark: str, path: Path) -> str | None:
    """What follows a mark at the beginning of the last line, None without it."""
    line = path[-1].text if path else ""
    return line[len(mark) :].strip() if line.lower().startswith(mark) else None
