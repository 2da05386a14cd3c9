"""A search with long thoughts, whose answer needs facts stated early on the path, on the hand-written model of `recall`.

Each thought begins with a drawn mark, continues with some empty lines, and ends with a statement of all marks on its path. The
last thought also recites a digit of the prompt that was never read before. An answer is right if it recites all of them. So every
thought below a mark states it again, and the mark is lost if all these statements are dropped. Of a thought, only the last
:data:`CLOSING` tokens are needed.

Random scores decide which thoughts are kept.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from benchmarks.memory.recall import RecallLine, Script, fact, line, model, tokenizer
from rksc_tot import Task, Verifier, verifier
from rksc_tot.core.task import Path
from rksc_tot.engine.transformers_engine.engine import TransformersEngine
from rksc_tot.strategies import BFS

LEVELS = 4
LENGTH = 48  # lines of a thought
DIGITS = 10  # number of values of a mark and of a digit of the prompt
STATED = 12  # digits in the prompt
ASKED = f"p{STATED - 1}"
CLOSING = 2 * (LEVELS - 1) + 1
STRATEGY = BFS(b=4, k=8)


def script() -> tuple[Script, list[str]]:
    """The script of the model, and the words that end thoughts."""
    lines: list[RecallLine] = []
    ends = []
    for level in range(LEVELS):
        known = [f"m{above}" for above in range(level + 1)]
        recited = [ASKED, *known] if level == LEVELS - 1 else known
        lines += [RecallLine(writes=known[-1]), *[RecallLine()] * (LENGTH - 2 - len(recited))]
        lines += [*(RecallLine(name, name) for name in recited), RecallLine()]
        ends.append(line(len(lines) - 1))
    names = [*(f"p{n}" for n in range(STATED)), *(f"m{n}" for n in range(LEVELS))]
    return Script(lines, names, DIGITS), ends


class LongThoughts(Task):
    """A task: recite the drawn marks. A problem is the digits that the prompt states, such as ``"3 1 4 1 5 9 2 6 5 3 5 8"``."""

    name = "long thoughts"
    max_thoughts = LEVELS
    max_thought_tokens = 2 * LENGTH

    def __init__(self) -> None:
        self.script, self.stop = script()

    def prompt(self, problem: str) -> str:
        return self.script.prompt({f"p{n}": int(digit) for n, digit in enumerate(problem.split())})

    def is_solution(self, problem: str, path: Path) -> bool:
        return len(path) == LEVELS

    def answer(self, problem: str, path: Path) -> str:
        """The recited values, and after a bar the right values."""
        digit = problem.split()[STATED - 1]
        truth = [fact(ASKED, digit), *(fact(f"m{n}", mark) for n, mark in enumerate(marks(path)))]
        told = re.findall(r" \S+=\S+", path[-1].text)[-len(truth) :]
        return "".join([*told, " |", *truth])

    def check(self, problem: str, answer: str) -> bool:
        told, _, truth = answer.partition(" |")
        return told == truth


def marks(path: Path) -> list[str]:
    """The marks drawn in the thoughts."""
    return [re.findall(r"=(\S+)", thought.text)[0] for thought in path]


def by_chance() -> Verifier:
    """Scores from 0 to 1 that depend only on problem and marks."""

    @verifier(name="by chance")
    def score(problem: str, path: Path) -> float:
        return random.Random(f"{problem} {marks(path)}").random()

    return score


def problems(count: int) -> Sequence[str]:
    """Random digits."""
    rng = random.Random("long thoughts")
    return [" ".join(str(rng.randrange(DIGITS)) for _ in range(STATED)) for _ in range(count)]


def engine(**options: object) -> TransformersEngine:
    """An engine on the model."""
    written, _ = script()
    return TransformersEngine(model(written), tokenizer(written), name="written by hand", **options)  # type: ignore[arg-type]
