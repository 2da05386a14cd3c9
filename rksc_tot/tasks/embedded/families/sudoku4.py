"""The family ``sudoku4``: 4×4 sudoku, one row a thought. Held out are whole grids."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from rksc_tot.core.errors import ConfigError
from rksc_tot.tasks.embedded.documents import Document, TokenTarget
from rksc_tot.tasks.embedded.family import Family, LlamaShape, Reading, Stage
from rksc_tot.tasks.puzzles.sudoku import (
    BEFORE_ROWS,
    INSTRUCTION,
    QUESTION,
    SIZE,
    Grid,
    all_grids,
    completions,
    legal_rows,
    puzzle_text,
    random_puzzle,
)

HELD_OUT_SEED = 4
HELD_OUT_GRIDS = 58  # a fifth of the 288 grids
EVALUATED = 100  # held-out puzzles
GOOD_ROWS = 0.5  # share of rows that keep a solution in reach, in paths that may lead nowhere
NEW_PUZZLES = 0.03  # share of documents with a puzzle that was not met before

DIGITS = ("1", "2", "3", "4", "_")
PHRASES = (INSTRUCTION, BEFORE_ROWS, QUESTION)
WORDS = (*PHRASES, "\n", *DIGITS, *(" " + digit for digit in DIGITS), " yes", " no")
PATTERN = "|".join([*map(re.escape, PHRASES), r" ?[a-z]+| ?[^\sa-z]|\s"])
LAYERS = 6
READINGS = (
    Reading("text", LAYERS, LAYERS, 1.0),
    Reading("agrees", 2, 3, 0.5),
    Reading("label", 3, LAYERS - 1, 0.3),
    Reading("label", LAYERS, LAYERS, 1.0),
)


def held_out_grids() -> frozenset[Grid]:
    """The complete grids that training does not contain."""
    return frozenset(random.Random(HELD_OUT_SEED).sample(all_grids(), HELD_OUT_GRIDS))


def held_out_puzzles() -> list[Grid]:
    """Puzzles whose only solution is a held-out grid."""
    rng, grids = random.Random(HELD_OUT_SEED), sorted(held_out_grids())
    found: dict[Grid, None] = {}
    while len(found) < EVALUATED:
        puzzle = random_puzzle(rng, rng.choice(grids))
        if puzzle:
            found[puzzle] = None
    return list(found)


@lru_cache(maxsize=200_000)
def completed(puzzle: Grid, rows: Grid) -> Grid | None:
    """A complete grid that begins with the rows, None if there is none."""
    found = completions(puzzle, rows, most=1)
    return found[0] if found else None


def walk(rng: random.Random, puzzle: Grid, length: int) -> Grid:
    """At most ``length`` legal rows. A row keeps a solution in reach with probability ``GOOD_ROWS``, if one is in reach."""
    rows: Grid = ()
    while len(rows) < length:
        legal = legal_rows(puzzle, rows)
        if rng.random() < GOOD_ROWS and (grid := completed(puzzle, rows)):
            legal = [grid[len(rows)]]
        if not legal:
            break
        rows = (*rows, rng.choice(legal))
    return rows


def prompt_text(puzzle: Grid) -> str:
    """The prompt of the task."""
    return f"{INSTRUCTION}{puzzle_text(puzzle)}{BEFORE_ROWS}"


def rows_text(rows: Grid) -> str:
    """The thoughts of a path."""
    return "".join(" ".join(map(str, row)) + "\n" for row in rows)


class SudokuDocuments:
    """Generates random documents."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.grids = sorted(set(all_grids()) - held_out_grids())
        self.puzzles: list[Grid] = []

    def puzzle(self) -> Grid:
        """A puzzle whose only solution is a grid for training: most often one of those before, as new ones take time to find."""
        if self.puzzles and self.rng.random() > NEW_PUZZLES:
            return self.rng.choice(self.puzzles)
        while True:
            found = random_puzzle(self.rng, self.rng.choice(self.grids))
            if found:
                self.puzzles.append(found)
                return found

    def document(self) -> Document:
        """Rows, most often with the question whether they can be completed; half of these can."""
        want, length = self.rng.random() < 0.5, self.rng.randint(1, SIZE)
        while True:
            puzzle = self.puzzle()
            rows = (completed(puzzle, ()) or ())[:length] if want else walk(self.rng, puzzle, length)
            if length == SIZE and len(rows) == SIZE:
                return Document(prompt_text(puzzle), rows_text(rows), targets=tuple(_targets(puzzle, rows, 0)))
            if len(rows) == length and (completed(puzzle, rows) is not None) == want:
                label = TokenTarget("label", 0, " yes" if want else " no")
                targets = (*_targets(puzzle, rows, 1), label)
                return Document(prompt_text(puzzle), rows_text(rows), QUESTION, targets)


def _targets(puzzle: Grid, rows: Grid, after: int) -> Iterator[TokenTarget]:
    """At each written cell, whether no given cell further down in its column or quarter has its digit.

    ``after``: the number of tokens after the rows.
    """
    for r, row in enumerate(rows):
        for c, digit in enumerate(row):
            below = {puzzle[down][c] for down in range(r + 1, SIZE)}
            if r % 2 == 0:
                below.update(puzzle[r + 1][c // 2 * 2 : c // 2 * 2 + 2])
            back = after + (len(rows) - r) * (SIZE + 1) - c - 1
            yield TokenTarget("agrees", back, " no" if digit in below else " yes")


def batches(rng: random.Random, documents: int) -> Iterator[list[Document]]:
    """Lists of random documents."""
    source = SudokuDocuments(rng)
    while True:
        yield [source.document() for _ in range(documents)]


def family(excluded: Sequence[object] = ()) -> Family:
    """The family, see :func:`~rksc_tot.tasks.embedded.family.load_family`."""
    if excluded:
        raise ConfigError("sudoku4 excludes no puzzles of a file", hint="leave out --exclude")
    puzzles = ["".join(str(digit or ".") for row in puzzle for digit in row) for puzzle in held_out_puzzles()]
    return Family(
        name="sudoku4",
        shape=LlamaShape(hidden=96, layers=LAYERS, heads=6, kv_heads=3, head_size=16, inner=288),
        stages=(Stage(READINGS, steps=20_000, documents=48),),
        words=WORDS,
        pattern=PATTERN,
        batches=batches,
        held_out={"roots": puzzles},
    )
