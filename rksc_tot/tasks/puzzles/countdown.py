"""Countdown: make a target from some numbers with + - * /, each number used at most once. A thought is one operation."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from rksc_tot.core.errors import TaskError
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.core.task import Path, Question, Reject, Task, Thought
from rksc_tot.tasks.game24.arithmetic import evaluate
from rksc_tot.tasks.game24.canonical_form import expression_of
from rksc_tot.tasks.game24.step_rules import numbers_after
from rksc_tot.tasks.game24.world import ArithmeticStep, State

MOST_NUMBERS, LARGEST, LARGEST_TARGET = 6, 999, 9999

INSTRUCTION = """\
Make the target from the numbers with + - * and /. Use each number at most once; every result is a whole number, 0 or more. \
Write one step a line, with the numbers left after it.

Numbers: 3 5 6
Target: 33
5 * 6 = 30 (left: 3 30)
3 + 30 = 33 (left: 33)

Numbers:"""
BEFORE_TARGET = "\nTarget:"
QUESTION = ("\nWith", " +", " -", " *", " /", " on the numbers left, can the target still be made? Answer yes or no:")
LABELS = {" yes": 1.0, " no": 0.0}
GENERATED = (4, 12, 10, 99)  # of generated problems: numbers, largest number, least and largest target
FIX = "write numbers and target, such as '3 5 6 9 -> 33'"

_TEXT = re.compile(r"\s*([0-9]{1,6}(?:[\s,]{1,3}[0-9]{1,6}){0,20})\s*(?:->|=>|:|=)\s*([0-9]{1,6})\s*")
_STEP = re.compile(r"(\d{1,9}) ([-+*/]) (\d{1,9}) = (\d{1,9}) \(left: (\d{1,9}(?: \d{1,9}){0,4})\)", re.ASCII)
_LONGEST = 120  # most characters of a step


class CountdownProblem(NamedTuple):
    """Sorted numbers, and the target."""

    numbers: State
    target: int


def result_of(left: int, op: str, right: int) -> int | None:
    """The result of an operation, None if it is no whole number or negative."""
    if op == "+":
        return left + right
    if op == "*":
        return left * right
    if op == "-":
        return left - right if left >= right else None
    return left // right if right and left % right == 0 else None


def legal_steps(state: State) -> Iterator[ArithmeticStep]:
    """All distinct steps from a state, the smaller number first for + and *."""
    seen = set()
    for i, small in enumerate(state):
        for j in range(i + 1, len(state)):
            large = state[j]
            for op in "+-*/":
                left, right = (small, large) if op in "+*" else (large, small)
                result = result_of(left, op, right)
                if result is not None and (left, op, right) not in seen:
                    seen.add((left, op, right))
                    yield ArithmeticStep(
                        left, op, right, result, tuple(sorted((*state[:i], *state[i + 1 : j], *state[j + 1 :], result)))
                    )


def way(state: State, target: int, dead: set[State] | None = None) -> list[ArithmeticStep] | None:
    """Steps from a state to the target, None if there are none. ``dead``: states that are known to have none."""
    dead = set() if dead is None else dead
    if state in dead:
        return None
    steps = list(legal_steps(state))
    for step in steps:
        if step.result == target:
            return [step]
    for step in steps if len(state) > 2 else ():
        rest = way(step.after, target, dead)
        if rest is not None:
            return [step, *rest]
    dead.add(state)
    return None


@cache
def results(state: State) -> frozenset[int]:
    """Every number that can be made from at least two of at most four numbers."""
    found = set()
    for step in legal_steps(state):
        found.add(step.result)
        found |= results(step.after)
    return frozenset(found)


class Countdown(Task):
    """Countdown: make a target from numbers, one operation a thought, such as ``5 * 6 = 30 (left: 3 30)``.

    A problem is a text such as ``3 5 6 9 -> 33``, or ``{"numbers": [3, 5, 6, 9], "target": 33}``. A path is complete when a
    step makes the target, or when one number is left.
    """

    name = "countdown"
    max_thoughts = MOST_NUMBERS - 1
    max_thought_tokens = 48
    end_completes = False
    default_model = "embedded:countdown"
    strategy_settings = MappingProxyType(
        {"bfs": {"b": 8, "k": 24}, "beam": {"b": 8, "k": 24}, "dfs": {"k": 24, "threshold": 0.3}}
    )

    def validate(self, problem: Any) -> CountdownProblem:
        """The sorted numbers and the target of a problem that can be solved."""
        numbers, target = _read(problem)
        if not 2 <= len(numbers) <= MOST_NUMBERS:
            raise TaskError(f"there are {len(numbers)} numbers, not 2 to {MOST_NUMBERS}", hint=FIX)
        for number in numbers:
            if not 1 <= number <= LARGEST:
                raise TaskError(f"{shown(number, 20)} is not between 1 and {LARGEST}", hint=FIX)
        if not 1 <= target <= LARGEST_TARGET:
            raise TaskError(f"the target {shown(target, 20)} is not between 1 and {LARGEST_TARGET}", hint=FIX)
        if target in numbers:
            raise TaskError(f"the target {target} is one of the numbers", hint="give another target")
        if way(tuple(sorted(numbers)), target) is None:
            given = " ".join(map(str, numbers))
            raise TaskError(f"there is no way to make {target} from {given}", hint="give another target")
        return CountdownProblem(tuple(sorted(numbers)), target)

    def generate_problems(self, seed: int = 0) -> Iterator[str]:
        """Endless problems of four numbers from 1 to 12 with targets from 10 to 99 that can be made."""
        rng = random.Random(f"countdown/{seed}")
        count, largest, low, high = GENERATED
        while True:
            numbers = tuple(sorted(rng.randint(1, largest) for _ in range(count)))
            targets = sorted(n for n in results(numbers) if low <= n <= high and n not in numbers)
            if targets:
                yield f"{' '.join(map(str, numbers))} -> {rng.choice(targets)}"

    def prompt(self, problem: CountdownProblem) -> str:
        """Rules, an example, the numbers and the target."""
        return f"{INSTRUCTION} {' '.join(map(str, problem.numbers))}{BEFORE_TARGET} {problem.target}\n"

    def parse(self, problem: CountdownProblem, path: Path, text: str) -> Thought:
        """A legal step from the numbers left. Its state is the sorted tuple of the numbers left after it."""
        before = path.state if path else problem.numbers
        return Thought(text.strip(), numbers_after(before, _read_step(text), result_of))

    def is_solution(self, problem: CountdownProblem, path: Path) -> bool:
        """Whether the target is made or one number is left."""
        return bool(path) and (problem.target in path.state or len(path.state) == 1)

    def answer(self, problem: CountdownProblem, path: Path) -> str:
        """The last result as one expression in canonical form."""
        return str(expression_of(problem.numbers, (_read_step(thought.text)[:3] for thought in path)))

    def check(self, problem: CountdownProblem, answer: object) -> bool:
        """Whether an expression makes the target and uses no number more often than it is given."""
        if not isinstance(answer, str):
            return False
        try:
            value, used = evaluate(answer)
        except ValueError:
            return False
        return value == problem.target and Counter(used) <= Counter(problem.numbers)

    def state_key(self, problem: CountdownProblem, path: Path) -> Hashable | None:
        """The numbers left: paths with equal numbers left share a state."""
        left: Hashable = path.state
        return left

    def question(self, problem: CountdownProblem, path: Path) -> Question:
        """Whether the target can still be made."""
        return Question("".join(QUESTION), LABELS)

    def solution(self, problem: CountdownProblem) -> Sequence[str]:
        """The steps of one way to the target."""
        return [str(step) for step in way(problem.numbers, problem.target) or ()]


def _read(problem: Any) -> tuple[list[int], int]:
    if isinstance(problem, CountdownProblem):
        return list(problem.numbers), problem.target
    if isinstance(problem, str) and (found := _TEXT.fullmatch(problem[:1000])):
        return [int(number) for number in re.findall(r"[0-9]+", found[1])], int(found[2])
    if isinstance(problem, Mapping):
        numbers, target = problem.get("numbers"), problem.get("target")
        if isinstance(numbers, (list, tuple)) and all(type(number) is int for number in (*numbers, target)):
            return list(numbers), int(target or 0)
    raise TaskError(f"{shown(problem, 40)} is not a countdown problem", hint=FIX)


def _read_step(text: str) -> tuple[int, str, int, int, State]:
    line = text.strip()
    found = _STEP.fullmatch(line) if len(line) <= _LONGEST else None
    if not found:
        raise Reject("it is not a step such as '5 * 6 = 30 (left: 3 30)'")
    left, op, right, result, after = found.groups()
    return int(left), op, int(right), int(result), tuple(map(int, after.split()))
