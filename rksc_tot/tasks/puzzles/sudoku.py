"""4×4 sudoku: every row, column and quarter of the grid holds 1, 2, 3 and 4. A thought is one row."""

from __future__ import annotations

import random
import re
from collections.abc import Hashable, Iterator, Sequence
from functools import cache
from itertools import permutations
from types import MappingProxyType
from typing import Any

from rksc_tot.core.errors import TaskError
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.core.task import Path, Question, Reject, Task, Thought

SIZE = 4
Row = tuple[int, ...]
Grid = tuple[Row, ...]  # rows from the top; 0 is an empty cell

INSTRUCTION = """\
Complete the 4 by 4 sudoku. Every row, every column and every 2 by 2 quarter holds each of 1, 2, 3 and 4 once. \
Write one row a line.

Puzzle:
1 _ _ 4
_ 4 1 _
2 _ _ _
_ _ 2 1
Solution:
1 2 3 4
3 4 1 2
2 1 4 3
4 3 2 1

Puzzle:
"""
BEFORE_ROWS = "Solution:\n"
QUESTION = "\nCan the rows so far be completed to a correct sudoku? Answer yes or no:"
LABELS = {" yes": 1.0, " no": 0.0}
CLUES = (4, 6)  # fewest and most given digits of a generated puzzle
FIX = "write the 16 cells row by row, with a dot for an empty cell, such as 1..4.41.2.....21"

_ROWS = tuple(permutations(range(1, SIZE + 1)))
_CELL = {".": 0, "_": 0, "0": 0, "1": 1, "2": 2, "3": 3, "4": 4}
_DIGITS = re.compile(r"[1-4](?:[ ,|]{0,3}[1-4]){3}")
_LONGEST = 40  # most characters of a row


def conflict(rows: Grid, row: Row) -> str | None:
    """Why ``row`` cannot follow the complete ``rows`` above it; None if it can."""
    if len(set(row)) < SIZE:
        return "the row holds a digit twice"
    for column, digit in enumerate(row):
        if any(above[column] == digit for above in rows):
            return f"column {column + 1} already holds {digit}"
    if len(rows) % 2:
        for start in (0, 2):
            twice = set(row[start : start + 2]) & set(rows[-1][start : start + 2])
            if twice:
                return f"its quarter already holds {min(twice)}"
    return None


def legal_rows(puzzle: Grid, rows: Grid) -> list[Row]:
    """The rows that may come next: they agree with the given digits and the rows above."""
    given = puzzle[len(rows)]
    return [
        row
        for row in _ROWS
        if all(want in (0, digit) for want, digit in zip(given, row, strict=True)) and conflict(rows, row) is None
    ]


def completions(puzzle: Grid, rows: Grid = (), most: int = 2) -> list[Grid]:
    """At most ``most`` complete grids that begin with ``rows``."""
    if len(rows) == SIZE:
        return [rows]
    found: list[Grid] = []
    for row in legal_rows(puzzle, rows):
        found += completions(puzzle, (*rows, row), most - len(found))
        if len(found) >= most:
            break
    return found


@cache
def all_grids() -> tuple[Grid, ...]:
    """The 288 complete grids."""
    return tuple(completions(((0,) * SIZE,) * SIZE, most=1000))


def random_puzzle(rng: random.Random, grid: Grid, clues: tuple[int, int] = CLUES) -> Grid | None:
    """A puzzle whose only solution is ``grid``, with a random number of given digits; None if the draw has other solutions."""
    places = rng.sample(range(SIZE * SIZE), rng.randint(*clues))
    puzzle = tuple(
        tuple(digit if SIZE * r + c in places else 0 for c, digit in enumerate(row)) for r, row in enumerate(grid)
    )
    return puzzle if len(completions(puzzle)) == 1 else None


def puzzle_text(puzzle: Grid) -> str:
    """The rows of a puzzle, one a line, with ``_`` for an empty cell."""
    return "".join(" ".join(str(digit or "_") for digit in row) + "\n" for row in puzzle)


class Sudoku4(Task):
    """4×4 sudoku, one row a thought, such as ``1 2 3 4``. A row that breaks a rule at once is rejected.

    A problem is a text of 16 cells, row by row, with a dot, ``_`` or 0 for an empty cell; or a sequence of four rows.
    """

    name = "sudoku4"
    max_thoughts = SIZE
    max_thought_tokens = 24
    end_completes = False
    default_model = "embedded:sudoku4"
    strategy_settings = MappingProxyType(
        {"bfs": {"b": 5, "k": 12}, "beam": {"b": 5, "k": 12}, "dfs": {"k": 12, "threshold": 0.3}}
    )

    def validate(self, problem: Any) -> Grid:
        """The rows of a puzzle that has a solution."""
        cells = _cells(problem)
        grid = tuple(tuple(cells[at : at + SIZE]) for at in range(0, SIZE * SIZE, SIZE))
        if not completions(grid, most=1):
            raise TaskError("the sudoku has no solution", hint="correct the given digits")
        return grid

    def generate_problems(self, seed: int = 0) -> Iterator[str]:
        """Endless puzzles with one solution and 4 to 6 given digits."""
        rng = random.Random(f"sudoku4/{seed}")
        while True:
            puzzle = random_puzzle(rng, rng.choice(all_grids()))
            if puzzle:
                yield "".join(str(digit or ".") for row in puzzle for digit in row)

    def prompt(self, problem: Grid) -> str:
        """Rules, an example, the puzzle."""
        return f"{INSTRUCTION}{puzzle_text(problem)}{BEFORE_ROWS}"

    def parse(self, problem: Grid, path: Path, text: str) -> Thought:
        """The next row. Its state is the tuple of all rows so far."""
        line = text.strip()
        if len(line) > _LONGEST or not _DIGITS.fullmatch(line):
            raise Reject("it is not a row such as '1 2 3 4'")
        if len(path) == SIZE:
            raise Reject("the grid is complete")
        rows: Grid = path.state or ()
        row = tuple(int(letter) for letter in line if letter.isdigit())
        for column, (want, digit) in enumerate(zip(problem[len(rows)], row, strict=True), 1):
            if want not in (0, digit):
                raise Reject(f"column {column} of the row is {want} in the puzzle")
        if why := conflict(rows, row):
            raise Reject(why)
        return Thought(" ".join(map(str, row)), (*rows, row))

    def is_solution(self, problem: Grid, path: Path) -> bool:
        """Whether all four rows are written."""
        return len(path) == SIZE

    def answer(self, problem: Grid, path: Path) -> str:
        """The rows in one line, such as ``1234 3412 2143 4321``."""
        return " ".join("".join(map(str, row)) for row in path.state or ())

    def check(self, problem: Grid, answer: object) -> bool:
        """Whether the answer has the given digits and keeps the rules. Anything that is not four rows is wrong."""
        if not isinstance(answer, str) or len(answer) > 4 * _LONGEST:
            return False
        digits = [letter for letter in answer if not letter.isspace()]
        if len(digits) != SIZE * SIZE or not set(digits) <= set("1234"):
            return False
        rows: Grid = ()
        for at in range(0, SIZE * SIZE, SIZE):
            row = tuple(map(int, digits[at : at + SIZE]))
            if row not in legal_rows(problem, rows):
                return False
            rows = (*rows, row)
        return True

    def state_key(self, problem: Grid, path: Path) -> Hashable | None:
        """The rows so far."""
        rows: Hashable = path.state
        return rows

    def question(self, problem: Grid, path: Path) -> Question:
        """Whether the rows so far can be completed."""
        return Question(QUESTION, LABELS)

    def solution(self, problem: Grid) -> Sequence[str]:
        """The rows of the first solution."""
        return [" ".join(map(str, row)) for row in completions(problem, most=1)[0]]


def _cells(problem: Any) -> list[int]:
    if isinstance(problem, str):
        letters: Sequence[Any] = [letter for letter in problem[:1000] if not letter.isspace() and letter not in "|,/"]
    elif isinstance(problem, Sequence) and len(problem) == SIZE:
        letters = [cell for row in problem for cell in (row if isinstance(row, Sequence) else [row])]
    else:
        raise TaskError(f"{shown(problem, 40)} is not a 4×4 sudoku", hint=FIX)
    for letter in letters:
        if str(letter) not in _CELL:
            raise TaskError(f"{shown(letter, 40)} is not a cell of a 4×4 sudoku", hint=FIX)
    if len(letters) != SIZE * SIZE:
        raise TaskError(f"the sudoku has {len(letters)} cells, not {SIZE * SIZE}", hint=FIX)
    return [_CELL[str(letter)] for letter in letters]
