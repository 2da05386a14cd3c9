"""The game of 24: use four numbers, each exactly once, with + - * / to make 24."""

from __future__ import annotations

import random
import re
from collections.abc import Hashable, Iterator, Sequence
from fractions import Fraction
from typing import Any, Literal

from rksc_tot.core.errors import ConfigError, TaskError
from rksc_tot.core.plugins.user_code import shown, text_of
from rksc_tot.core.task import Path, Question, Reject, Task, Thought
from rksc_tot.tasks.game24.arithmetic import NUMBER, apply, evaluate, reachable
from rksc_tot.tasks.game24.canonical_form import expression_of
from rksc_tot.tasks.game24.prompts import QUESTION, prompt_text
from rksc_tot.tasks.game24.puzzles import all_puzzles
from rksc_tot.tasks.game24.step_rules import numbers_after
from rksc_tot.tasks.game24.world import GOAL, LARGEST, State, good_steps

COUNT = 4
STRATEGY_SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "steps": {"bfs": {"b": 5, "k": 32}, "dfs": {"k": 32, "threshold": 0.5}, "beam": {"b": 5, "k": 32}},
    "solve": {"self_consistency": {"n": 20}},
}  # by role; a small model needs many samples to find a good step
LABELS = {"sure": 20.0, "likely": 1.0, "impossible": 0.001}  # the weights of the tree-of-thoughts paper
FIX = f"write {COUNT} whole numbers from 0 to {LARGEST}, such as 4 5 6 10"

_STEP = re.compile(rf"({NUMBER}) ([-+*/]) ({NUMBER}) = ({NUMBER}) \(left: ({NUMBER}(?: {NUMBER}){{0,{COUNT - 2}}})\)")
_LONGEST_STEP = 120  # most characters of a step


class Game24(Task):
    """Game of 24: make 24 from four numbers, one step a thought, such as ``10 - 4 = 6 (left: 5 6 6)``.

    Three steps are a complete path, right or wrong. An end of text does not complete a path.

    Parameters
    ----------
    role : {"steps", "solve"}
        The prompt for the embedded model. ``steps`` asks for a legal step, for tree search. ``solve`` asks for a whole chain, for
        strategies without search; only equal texts are merged then, so that each chain keeps its vote.
    """

    name = "game24"
    default_model = "embedded"
    max_thoughts = COUNT - 1
    max_thought_tokens = 32
    end_completes = False

    def __init__(self, role: Literal["steps", "solve"] = "steps") -> None:
        if role not in ("steps", "solve"):
            raise ConfigError(f"game24 has no role {role!r}", hint="give 'steps' or 'solve'")
        self.role = role
        self.strategy_settings = STRATEGY_SETTINGS[role]

    def validate(self, problem: str | Sequence[int]) -> State:
        """The sorted numbers of ``"4 5 6 10"`` or ``[4, 5, 6, 10]``."""
        if not isinstance(problem, Sequence):
            raise TaskError(f"{shown(problem, 40)} is not a game of 24", hint=FIX)
        parts = problem.replace(",", " ").split() if isinstance(problem, str) else [text_of(part) for part in problem]
        for part in parts:
            if not re.fullmatch(r"[0-9]{1,6}", part):
                raise TaskError(f"{_short(part)} is not a whole number", hint=FIX)
        numbers = tuple(sorted(map(int, parts)))
        if len(numbers) != COUNT:
            raise TaskError(f"{_short(' '.join(parts))} has {_count(len(numbers))}, not {COUNT}", hint=FIX)
        if numbers[-1] > LARGEST:
            raise TaskError(f"{numbers[-1]} is larger than {LARGEST}", hint=FIX)
        if not reachable(numbers, GOAL):
            given = " ".join(map(str, numbers))
            raise TaskError(f"there is no way to make {GOAL} from {given}", hint="try other numbers, such as 4 5 6 10")
        return numbers

    def generate_problems(self, seed: int = 0) -> Iterator[str]:
        """All puzzles of numbers from 1 to 13 that can be solved with whole numbers, in random order."""
        puzzles = all_puzzles()
        random.Random(f"game24/{seed}").shuffle(puzzles)
        for puzzle in puzzles:
            yield " ".join(map(str, puzzle))

    def solution(self, problem: State) -> Sequence[str] | None:
        """The steps of one way with whole numbers, None if there is none."""
        steps: list[str] = []
        while len(problem) > 1 and (good := good_steps(problem)):
            steps.append(str(good[0]))
            problem = good[0].after
        return steps or None

    def prompt(self, problem: State) -> str:
        """The prompt that the embedded model was trained on."""
        return prompt_text(self.role, problem)

    def parse(self, problem: State, path: Path, text: str) -> Thought:
        """A legal step from the numbers left on the path. Its state is the sorted tuple of the numbers left after it."""
        before = path.state if path else map(Fraction, problem)
        return Thought(text.strip(), numbers_after(before, _read_step(text), apply))

    def is_solution(self, problem: State, path: Path) -> bool:
        """Whether one number is left."""
        return len(path) == len(problem) - 1

    def answer(self, problem: State, path: Path) -> str:
        """The steps as one expression in canonical form."""
        return str(expression_of(problem, (_read_step(thought.text)[:3] for thought in path)))

    def check(self, problem: State, answer: object) -> bool:
        """Whether an expression makes 24 from exactly the given numbers. Anything that is not an expression is wrong."""
        if not isinstance(answer, str):
            return False
        try:
            value, used = evaluate(answer)
        except ValueError:
            return False
        return value == GOAL and sorted(used) == sorted(problem)

    def promising(self, problem: State, path: Path) -> bool:
        """Whether 24 can be made from the numbers left."""
        return reachable(path.state if path else problem, GOAL)

    def state_key(self, problem: State, path: Path) -> Hashable | None:
        """The numbers left: paths with equal numbers left share a state. None in role ``solve``."""
        return path.state if self.role == "steps" else None

    def question(self, problem: State, path: Path) -> Question | None:
        """The value question, whether 24 can still be made. None in role ``solve``."""
        return Question(QUESTION, LABELS) if self.role == "steps" else None


def whole_chains() -> Game24:
    """Game of 24 for strategies without search: the prompt asks for a whole chain, and only equal texts are merged."""
    return Game24(role="solve")


def _read_step(text: str) -> tuple[Fraction, str, Fraction, Fraction, tuple[Fraction, ...]]:
    line = text.strip()
    if not line:
        raise Reject("the thought is empty")
    found = _STEP.fullmatch(line) if len(line) <= _LONGEST_STEP else None
    if not found:
        raise Reject("it is not a step such as '10 - 4 = 6 (left: 5 6 6)'")
    left, op, right, result, after = found.groups()
    return Fraction(left), op, Fraction(right), Fraction(result), tuple(map(Fraction, after.split()))


def _count(number: int) -> str:
    return f"{number} number{'' if number == 1 else 's'}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
