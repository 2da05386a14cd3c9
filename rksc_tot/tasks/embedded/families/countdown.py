"""The family ``countdown``: three or four small numbers and a target up to 99. Held out are sets of numbers."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import combinations_with_replacement

from rksc_tot.core.errors import ConfigError
from rksc_tot.tasks.embedded.documents import Document, TokenTarget
from rksc_tot.tasks.embedded.family import Family, LlamaShape, Reading, Stage
from rksc_tot.tasks.game24.world import ArithmeticStep, State
from rksc_tot.tasks.puzzles.countdown import (
    BEFORE_TARGET,
    GENERATED,
    INSTRUCTION,
    QUESTION,
    CountdownProblem,
    legal_steps,
)

HELD_OUT_SEED = 99
HELD_OUT_SETS = 120  # of 1365 sets of four numbers
EVALUATED = 100  # held-out problems
COUNT, LARGEST_NUMBER, LEAST_TARGET, LARGEST = GENERATED  # no number is larger than LARGEST in this family
VALUE_MIX = {3: 0.15, 2: 0.55, 1: 0.3}  # shares of the questions by how many numbers are left

NUMBERS = [str(n) for n in range(LARGEST + 1)]
WORDS = (
    INSTRUCTION, BEFORE_TARGET, QUESTION[0], QUESTION[-1], *NUMBERS, *(" " + n for n in NUMBERS),
    " +", " -", " *", " /", " =", " (left:", ")", "\n", " yes", " no",
)  # fmt: skip
PATTERN = "|".join(
    [
        *map(re.escape, (INSTRUCTION, BEFORE_TARGET, QUESTION[0], QUESTION[-1])),
        r" ?\(left:| ?\d{1,2}| ?[a-z]+| ?[^\sa-z\d]|\s",
    ]
)
LAYERS = 5
READINGS = (
    Reading("text", LAYERS, LAYERS, 1.0),
    Reading("result", 2, 3, 0.5),
    Reading("verdict", 3, LAYERS - 1, 0.3),
    Reading("verdict", LAYERS, LAYERS, 1.0),
    Reading("label", 3, LAYERS - 1, 0.3),
    Reading("label", LAYERS, LAYERS, 1.0),
)


@cache
def steps_within(state: State) -> tuple[ArithmeticStep, ...]:
    """The legal steps whose result has a token."""
    return tuple(step for step in legal_steps(state) if step.result <= LARGEST)


@lru_cache(maxsize=300_000)
def makes(state: State) -> frozenset[int]:
    """Every number up to ``LARGEST`` that can be made from a state without larger results."""
    found = set()
    for step in steps_within(state):
        found.add(step.result)
        if len(step.after) > 1:
            found |= makes(step.after)
    return frozenset(found)


def reaches(state: State, target: int) -> bool:
    """Whether the target is among the numbers or can be made."""
    return target in state or target in makes(state)


@cache
def held_out_sets() -> frozenset[State]:
    """The sets of four numbers that training does not contain as roots."""
    every = list(combinations_with_replacement(range(1, LARGEST_NUMBER + 1), COUNT))
    return frozenset(random.Random(HELD_OUT_SEED).sample(every, HELD_OUT_SETS))


def targets_of(numbers: State) -> list[int]:
    """The targets of generated problems on these numbers."""
    return sorted(n for n in makes(numbers) if n >= LEAST_TARGET and n not in numbers)


def held_out_problems() -> list[CountdownProblem]:
    """Problems on held-out sets of numbers, one for each of some sets."""
    rng = random.Random(HELD_OUT_SEED)
    sets = [numbers for numbers in sorted(held_out_sets()) if targets_of(numbers)]
    return [
        CountdownProblem(numbers, rng.choice(targets_of(numbers))) for numbers in sorted(rng.sample(sets, EVALUATED))
    ]


def prompt_text(problem: CountdownProblem) -> str:
    """The prompt of the task."""
    return f"{INSTRUCTION} {' '.join(map(str, problem.numbers))}{BEFORE_TARGET} {problem.target}\n"


class CountdownDocuments:
    """Generates random documents."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def problem(self) -> CountdownProblem:
        """A problem on three or, three times in four, on four numbers that are not held out."""
        while True:
            count = COUNT if self.rng.random() < 0.75 else COUNT - 1
            numbers = tuple(sorted(self.rng.randint(1, LARGEST_NUMBER) for _ in range(count)))
            targets = [] if numbers in held_out_sets() else targets_of(numbers)
            if targets:
                return CountdownProblem(numbers, self.rng.choice(targets))

    def walk(self, problem: CountdownProblem, until: int, good: float) -> list[ArithmeticStep]:
        """Random steps down to ``until`` numbers or the target, each good with probability ``good``, if one is."""
        steps: list[ArithmeticStep] = []
        state = problem.numbers
        while len(state) > until and problem.target not in state:
            choices = steps_within(state)
            if self.rng.random() < good:
                choices = tuple(step for step in choices if reaches(step.after, problem.target)) or choices
            if not choices:
                break
            steps.append(self.rng.choice(choices))
            state = steps[-1].after
        return steps

    def document(self) -> Document:
        """Steps, then the question whether the target can be made; half of the states can reach it."""
        want = self.rng.random() < 0.5
        [left] = self.rng.choices(tuple(VALUE_MIX), tuple(VALUE_MIX.values()))
        while True:
            problem = self.problem()
            if len(problem.numbers) <= left:
                continue
            steps = self.walk(problem, until=left, good=0.9 if want else 0.3)
            if len(steps) == len(problem.numbers) - left and reaches(steps[-1].after, problem.target) == want:
                text = "".join(f"{step}\n" for step in steps)
                targets = tuple(_targets(steps[-1].after, problem.target))
                return Document(prompt_text(problem), text, "".join(QUESTION), targets)


def _targets(state: State, target: int) -> Iterator[TokenTarget]:
    """For two numbers, result and verdict of each operation; for all states, the label."""
    yield TokenTarget("label", 0, " yes" if reaches(state, target) else " no")
    if len(state) == 2:
        made = {step.op: step.result for step in steps_within(state)}
        for at, op in enumerate("+-*/"):
            yield TokenTarget("result", len("+-*/") - at, f" {made[op]}" if op in made else " no")
            yield TokenTarget("verdict", len("+-*/") - at, " yes" if made.get(op) == target else " no")


def batches(rng: random.Random, documents: int) -> Iterator[list[Document]]:
    """Lists of random documents."""
    source = CountdownDocuments(rng)
    while True:
        yield [source.document() for _ in range(documents)]


def family(excluded: Sequence[object] = ()) -> Family:
    """The family, see :func:`~rksc_tot.tasks.embedded.family.load_family`."""
    if excluded:
        raise ConfigError("countdown excludes no puzzles of a file", hint="leave out --exclude")
    problems = [f"{' '.join(map(str, numbers))} -> {target}" for numbers, target in held_out_problems()]
    return Family(
        name="countdown",
        shape=LlamaShape(hidden=112, layers=LAYERS, heads=7, kv_heads=7, head_size=16, inner=320),
        stages=(Stage(READINGS, steps=30_000, documents=48),),
        words=WORDS,
        pattern=PATTERN,
        batches=batches,
        held_out={"roots": problems},
        largest_number=LARGEST,
    )
