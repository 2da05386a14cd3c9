"""Chains of arithmetic, calculated from left to right. A thought is one operation; a wrong result is a thought too."""

from __future__ import annotations

import random
import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from rksc_tot.core.errors import TaskError
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.core.task import Path, Question, Reject, Task, Thought

MOST_STEPS = 20

INSTRUCTION = """\
Calculate from left to right, one operation a line. "mod" is the remainder of a division.

Chain: 8 + 9 * 3 - 6 mod 7
8 + 9 = 17
17 * 3 = 51
51 - 6 = 45
45 mod 7 = 3

Chain: """
QUESTION = "\nIs the result in the last line right? Answer yes or no:"
LABELS = {" yes": 1.0, " no": 0.0}
GENERATED_STEPS = 5
FIX = "write a chain such as '8 + 9 * 3 - 6 mod 7'"

_CHAIN = re.compile(r"\s*-?\d{1,6}(?:\s{0,3}(?:[-+*%]|mod)\s{0,3}\d{1,6})+\s*", re.ASCII)
_PART = re.compile(r"([-+*%]|mod)\s*(\d+)", re.ASCII)
_LINE = re.compile(r"(-?\d{1,40}) (?:([-+*%])|(mod)) (\d{1,6}) = (-?\d{1,40})", re.ASCII)
_LONGEST = 120  # most characters of a line


class Operation(NamedTuple):
    """One operation of a chain on the result before it."""

    op: str
    number: int

    def on(self, value: int) -> int:
        """The result. A remainder has the sign of the divisor: 0 or more."""
        if self.op == "+":
            return value + self.number
        if self.op == "-":
            return value - self.number
        return value * self.number if self.op == "*" else value % self.number


class Calculation(NamedTuple):
    """A number and the operations on it."""

    start: int
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        return " ".join([str(self.start), *(f"{op} {number}" for op, number in self.operations)])


class ArithmeticChain(Task):
    """A chain such as ``8 + 9 * 3 - 6 mod 7``, from left to right; a thought is one line, such as ``8 + 9 = 17``.

    A line must take the next operation of the chain and the result before it. A wrong result is not rejected: verifiers are
    there to find it.
    """

    name = "arithmetic"
    max_thoughts = MOST_STEPS
    max_thought_tokens = 48
    end_completes = False

    def validate(self, problem: Any) -> Calculation:
        """The chain of a text."""
        problem = str(problem) if isinstance(problem, Calculation) else problem
        if not isinstance(problem, str) or len(problem) > 1000 or not _CHAIN.fullmatch(problem):
            raise TaskError(f"{shown(problem, 40)} is not a chain of + - * and mod", hint=FIX)
        parts = [Operation("mod" if op == "%" else op, int(number)) for op, number in _PART.findall(problem.strip(), 1)]
        if len(parts) > MOST_STEPS:
            raise TaskError(f"the chain has {len(parts)} operations, more than {MOST_STEPS}", hint="give a shorter one")
        if Operation("mod", 0) in parts:
            raise TaskError("there is no remainder mod 0", hint=FIX)
        first = re.match(r"\s*(-?\d+)", problem)
        return Calculation(int(first[1]) if first else 0, tuple(parts))

    def generate_problems(self, seed: int = 0) -> Iterator[str]:
        """Endless chains of five operations with results from 0 to 999."""
        rng = random.Random(f"arithmetic/{seed}")
        while True:
            value = start = rng.randint(2, 99)
            operations: list[Operation] = []
            while len(operations) < GENERATED_STEPS:
                op = rng.choice(("+", "-", "*", "mod"))
                operation = Operation(op, rng.randint(2, 99 if op in "+-" else 12))
                if 0 <= operation.on(value) <= 999 and (op != "mod" or value >= operation.number):
                    operations.append(operation)
                    value = operation.on(value)
            yield str(Calculation(start, tuple(operations)))

    def prompt(self, problem: Calculation) -> str:
        """Rules, an example, the chain."""
        return f"{INSTRUCTION}{problem}\n"

    def parse(self, problem: Calculation, path: Path, text: str) -> Thought:
        """The next line. Its state is the result that the line gives, right or wrong."""
        line = text.strip()
        found = _LINE.fullmatch(line) if len(line) <= _LONGEST else None
        if not found:
            raise Reject("it is not a line such as '8 + 9 = 17'")
        if len(path) == len(problem.operations):
            raise Reject("the chain is calculated")
        before = path.state if path else problem.start
        left, sign, mod, right, result = found.groups()
        if int(left) != before:
            raise Reject(f"the line begins with {left}, not with {before}")
        operation = Operation("mod" if sign == "%" else sign or mod, int(right))
        if operation != problem.operations[len(path)]:
            raise Reject("the next operation is {} {}".format(*problem.operations[len(path)]))
        return Thought(line, int(result))

    def is_solution(self, problem: Calculation, path: Path) -> bool:
        """Whether every operation has a line."""
        return len(path) == len(problem.operations)

    def answer(self, problem: Calculation, path: Path) -> str | None:
        """The last result."""
        return str(path.state) if path else None

    def check(self, problem: Calculation, answer: object) -> bool:
        """Whether the answer is the result of the chain."""
        return isinstance(answer, str) and answer.strip() == str(_results(problem)[-1])

    def state_key(self, problem: Calculation, path: Path) -> Hashable | None:
        """How many lines there are, and the last result."""
        return len(path), path.state

    def question(self, problem: Calculation, path: Path) -> Question:
        """Whether the last result is right."""
        return Question(QUESTION, LABELS)

    def solution(self, problem: Calculation) -> Sequence[str]:
        """The right lines."""
        results = _results(problem)
        return [
            f"{value} {op} {number} = {result}"
            for value, (op, number), result in zip(results, problem.operations, results[1:], strict=False)
        ]


def _results(problem: Calculation) -> list[int]:
    results = [problem.start]
    for operation in problem.operations:
        results.append(operation.on(results[-1]))
    return results
