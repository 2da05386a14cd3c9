"""Shapes of search trees: recorded in a file, or synthetic ones like them."""

from __future__ import annotations

import random
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

BRANCHES = 10


class Shape(BaseModel):
    """A tree. ``parent[i]`` < i, -1 for the root; ``tokens[i]``: tokens that node i adds to its path."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    parent: tuple[int, ...] = Field(min_length=1)
    tokens: tuple[int, ...]

    @model_validator(mode="after")
    def _is_a_tree(self) -> Self:
        if len(self.parent) != len(self.tokens) or min(self.tokens) < 1:
            raise ValueError("every node needs a parent and at least one token")
        if self.parent[0] != -1 or not all(0 <= p < n for n, p in enumerate(self.parent) if n):
            raise ValueError(
                "the first node must be the root, with parent -1; other nodes must come after their parents"
            )
        return self

    @property
    def children(self) -> list[list[int]]:
        """Children of every node."""
        found: list[list[int]] = [[] for _ in self.parent]
        for node, parent in enumerate(self.parent[1:], 1):
            found[parent].append(node)
        return found

    @property
    def depths(self) -> list[int]:
        """Depth of every node; 0 for the root."""
        return self._summed([0] + [1] * (len(self.parent) - 1))

    @property
    def paths(self) -> list[int]:
        """Tokens from the root to the end of every node."""
        return self._summed(self.tokens)

    @property
    def copies(self) -> int:
        """Tokens if every branch has a copy of its whole path."""
        return sum(path for path, below in zip(self.paths, self.children, strict=True) if not below)

    def _summed(self, values: list[int] | tuple[int, ...]) -> list[int]:
        found: list[int] = []
        for parent, value in zip(self.parent, values, strict=True):
            found.append(value + (found[parent] if parent >= 0 else 0))
        return found


class Kind(NamedTuple):
    """Synthetic trees of a task: tokens of the prompt, range of tokens of a thought, possible numbers of levels."""

    prompt: int
    thought: tuple[int, int]
    levels: tuple[int, ...]


SYNTHETIC = {
    "sorting": Kind(1100, (100, 1200), (1, 10, 10, 10)),
    "sets": Kind(1600, (10, 150), (9,)),
    "keywords": Kind(1440, (90, 115), (6,)),
    "merging": Kind(1100, (450, 1050), (3,)),
}


def recorded(file: Path) -> dict[str, list[Shape]]:
    """Trees by task, from ``{task: [{"parent": […], "tokens": […]}]}``."""
    return TypeAdapter(dict[str, list[Shape]]).validate_json(file.read_bytes())


def synthetic(count: int, seed: int = 0) -> dict[str, list[Shape]]:
    """``count`` trees a task. On each level, one thought is expanded into ten."""
    return {
        task: [_grown(kind, random.Random(f"{seed} {task} {n}")) for n in range(count)]
        for task, kind in SYNTHETIC.items()
    }


def _grown(kind: Kind, rng: random.Random) -> Shape:
    parent = [-1]
    for first in accumulate([1] + [BRANCHES] * (rng.choice(kind.levels) - 1)):
        parent += [rng.randrange(max(0, first - BRANCHES), first)] * BRANCHES
    tokens = [kind.prompt] + [rng.randint(*kind.thought) for _ in parent[1:]]
    return Shape(parent=tuple(parent), tokens=tuple(tokens))
