"""Mini crosswords of 4×4 letters with clues. A thought is one word, across or down."""

from __future__ import annotations

import random
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from rksc_tot.core.errors import TaskError
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.core.task import Path, Question, Reject, Task, Thought

EMPTY = "_"
SIZES = (2, 6)  # smallest and largest grid
LONGEST_CLUE = 200

GRIDS = """
step wide aria nets / show tire even pest / slow wire amen nest / than wire iris neat
shop line ores west / show tone open west / then hive idea sent / shop wire idea mess
this rare aria pest / tram rare ages peas / tram wore idea neat / edit rode amen seat
that hare even meat / then rare alas post / star wore iris meat / star tile eras west
slot pipe ones tent / spot tame ages rent / slot tame even want / alas tore oven meat
show lava over tend / slam tame oven wand / shot tape even mend / shot tire eras melt
shop love alas melt / slot tore oval well / spin wade ages neat / shot lame oven went
slam taxi amen rest / rent over site else / tape oral mess base / then rave iris melt
"""

INSTRUCTION = """\
Solve the crossword. Write one word a line, across or down, with its number.

Across:
1. water comes from it
2. frozen water
3. it catches fish
Down:
1. a metal for cans
2. the highest card
3. an animal at home
Words:
across 1: tap
down 2: ace
across 2: ice
across 3: net

Across:
"""
QUESTION = "\nCan all words so far be right? Answer yes or no:"
LABELS = {" yes": 1.0, " no": 0.0}
FIX = "give a number from 1 to 32, or {'across': [clues], 'down': [clues], 'solution': [words across]}"

_WORD = re.compile(r"(across|down) ([1-6]): ([a-z]{2,6})", re.IGNORECASE)


class Puzzle(NamedTuple):
    """The clues, and the words across if they are known."""

    across: tuple[str, ...]
    down: tuple[str, ...]
    solution: tuple[str, ...] | None = None


@cache
def grids() -> tuple[tuple[str, ...], ...]:
    """The words across of the grids that come with the package."""
    return tuple(tuple(grid.split()) for line in GRIDS.strip().splitlines() for grid in line.split(" / "))


@cache
def clues() -> Mapping[str, str]:
    """The clue of every word."""
    lines = (files("rksc_tot.tasks.puzzles") / "crossword_words.tsv").read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t") for line in lines)


def columns(rows: Sequence[str]) -> tuple[str, ...]:
    """The words down of the words across."""
    return tuple("".join(letters) for letters in zip(*rows, strict=True))


class Crossword(Task):
    """A mini crossword, one word a thought, such as ``across 1: step``. A word that does not fit the grid is rejected.

    A problem is the number of one of 32 grids that come with the package, or ``{"across": [clues], "down": [clues]}`` with the
    words across as ``solution``, if answers shall be checked. A path is complete when the grid is full.
    """

    name = "crossword"
    max_thoughts = 2 * SIZES[1]
    max_thought_tokens = 24
    end_completes = False

    def validate(self, problem: Any) -> Puzzle:
        """The clues of a problem, and its words if they are known."""
        if isinstance(problem, Puzzle):
            problem = problem._asdict()
        if isinstance(problem, str) and re.fullmatch(r"[0-9]{1,6}", problem.strip()):
            problem = int(problem)
        if isinstance(problem, int) and not isinstance(problem, bool):
            if not 1 <= problem <= len(grids()):
                raise TaskError(f"there is no crossword {shown(problem, 20)}", hint=FIX)
            rows = grids()[problem - 1]
            across, down = (tuple(clues()[word] for word in words) for words in (rows, columns(rows)))
            return Puzzle(across, down, rows)
        if not isinstance(problem, Mapping) or not {"across", "down"} <= set(problem):
            raise TaskError(f"{shown(problem, 40)} is not a crossword", hint=FIX)
        across, down = (_texts(problem[side], side) for side in ("across", "down"))
        if len(across) != len(down) or not SIZES[0] <= len(across) <= SIZES[1]:
            raise TaskError(
                f"there are {len(across)} clues across and {len(down)} down", hint="give as many of each, from 2 to 6"
            )
        if problem.get("solution") is None:
            return Puzzle(across, down)
        solution = _texts(problem["solution"], "solution")
        if [len(word) for word in solution] != [len(across)] * len(across) or not all(
            re.fullmatch("[a-z]+", word) for word in solution
        ):
            raise TaskError(
                f"the solution is not {len(across)} words of {len(across)} letters",
                hint="use small letters from a to z",
            )
        return Puzzle(across, down, solution)

    def generate_problems(self, seed: int = 0) -> Iterator[int]:
        """The numbers of all crosswords in random order."""
        numbers = list(range(1, len(grids()) + 1))
        random.Random(f"crossword/{seed}").shuffle(numbers)
        yield from numbers

    def prompt(self, problem: Puzzle) -> str:
        """Rules, an example, the clues."""
        across, down = (
            "".join(f"{at}. {clue}\n" for at, clue in enumerate(side, 1)) for side in (problem.across, problem.down)
        )
        return f"{INSTRUCTION}{across}Down:\n{down}Words:\n"

    def parse(self, problem: Puzzle, path: Path, text: str) -> Thought:
        """A word for its place. Its state has the letters of the grid, row by row, with ``_`` for an empty cell."""
        found = _WORD.fullmatch(text.strip()) if len(text) <= LONGEST_CLUE else None
        size = len(problem.across)
        if not found:
            raise Reject("it is not a line such as 'across 1: step'")
        side, at, word = found[1].lower(), int(found[2]), found[3].lower()
        if at > size or len(word) != size:
            raise Reject(f"the grid has {size} words of {size} letters {side}")
        grid = list(path.state or EMPTY * size * size)
        cells = range((at - 1) * size, at * size) if side == "across" else range(at - 1, size * size, size)
        before = "".join(grid[cell] for cell in cells)
        if EMPTY not in before:
            raise Reject(f"{side} {at} is already {before}")
        if any(old not in (EMPTY, new) for old, new in zip(before, word, strict=True)):
            raise Reject(f"{word} does not fit {before}")
        for cell, letter in zip(cells, word, strict=True):
            grid[cell] = letter
        return Thought(f"{side} {at}: {word}", "".join(grid))

    def is_solution(self, problem: Puzzle, path: Path) -> bool:
        """Whether the grid is full."""
        return bool(path) and EMPTY not in path.state

    def answer(self, problem: Puzzle, path: Path) -> str:
        """The words across, such as ``step wide aria nets``."""
        size, letters = len(problem.across), path.state or ""
        return " ".join(letters[at : at + size] for at in range(0, len(letters), size))

    def check(self, problem: Puzzle, answer: object) -> bool | None:
        """Whether the answer has the words of the solution; None if the solution is not known."""
        if problem.solution is None:
            return None
        return isinstance(answer, str) and answer.lower().split() == list(problem.solution)

    def state_key(self, problem: Puzzle, path: Path) -> Hashable | None:
        """The letters in the grid: the order of the words does not matter."""
        letters: Hashable = path.state
        return letters

    def question(self, problem: Puzzle, path: Path) -> Question:
        """Whether all words so far can be right."""
        return Question(QUESTION, LABELS)

    def solution(self, problem: Puzzle) -> Sequence[str] | None:
        """The words across, if they are known."""
        if problem.solution is None:
            return None
        return [f"across {at}: {word}" for at, word in enumerate(problem.solution, 1)]


def _texts(given: Any, what: str) -> tuple[str, ...]:
    if not isinstance(given, Sequence) or isinstance(given, str) or not all(isinstance(text, str) for text in given):
        raise TaskError(f"{what} is {shown(given, 40)}, not a list of texts", hint=FIX)
    for text in given:
        if not 0 < len(text.strip()) <= LONGEST_CLUE or "\n" in text:
            raise TaskError(
                f"{shown(text, 40)} is not one line of up to {LONGEST_CLUE} characters", hint=f"shorten it in {what}"
            )
    return tuple(given)
