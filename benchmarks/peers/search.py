"""The plain breadth-first search over token paths that every peer runs, and its costs.

It needs only the standard library, so that a peer's own interpreter can run it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

Path = list[int]  # token ids from the start of the prompt


@dataclass(frozen=True, slots=True)
class PeerShape:
    """The shape of a tree.

    ``prompt``, ``question``, ``new``: tokens of the prompt, of a question and of a thought. ``depth``: levels. ``keep``: states
    kept on each level. ``branches``: thoughts after each state.
    """

    prompt: int
    question: int
    new: int
    depth: int
    keep: int
    branches: int


@dataclass(frozen=True, slots=True)
class PeerProblem:
    """Token ids of a prompt, of the question after every thought, and of the first tokens of its two labels."""

    prompt: Path
    question: Path
    labels: tuple[list[int], list[int]]


@dataclass(slots=True)
class PeerTally:
    """The costs of one search. ``seconds``: total; ``expanding``, ``scoring``: parts of it.

    ``prefilled``: tokens of prompts, paths and questions that were computed, decode steps excluded.
    """

    expansions: int = 0
    nodes: int = 0
    sampled: int = 0
    questions: int = 0
    prefilled: int = 0
    seconds: float = 0.0
    expanding: float = 0.0
    scoring: float = 0.0

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The counts that must be equal for all peers: expansions, nodes, sampled tokens, questions."""
        return self.expansions, self.nodes, self.sampled, self.questions

    @classmethod
    def expected(cls, shape: PeerShape) -> Self:
        """The counts of a tree of a shape."""
        expansions = states = 1
        for _ in range(shape.depth - 1):
            states = min(shape.keep, states * shape.branches)
            expansions += states
        nodes = expansions * shape.branches
        return cls(expansions, nodes, nodes * shape.new, nodes)


class Backend(Protocol):
    """The calls that a peer must implement."""

    def grow(self, paths: Sequence[Path], branches: int, new: int) -> list[list[Path]]:
        """For each path, the tokens of its branches, each ``new`` long."""
        ...

    def value(self, families: Sequence[Sequence[Path]], problem: PeerProblem) -> list[list[float]]:
        """The value of each path, by a question after the path. ``families``: paths, grouped by parent."""
        ...

    def prefilled(self) -> int:
        """Tokens computed so far, without decode steps."""
        ...


def search(backend: Backend, problem: PeerProblem, shape: PeerShape) -> PeerTally:
    """Breadth-first search: grow every state of the frontier, value the children, keep the best.

    The size of the frontier does not depend on values, so all trees of a shape cost the same number of tokens.
    """
    tally = PeerTally(prefilled=-backend.prefilled())
    start = time.perf_counter()
    frontier = [problem.prompt]
    for _ in range(shape.depth):
        began = time.perf_counter()
        grown = backend.grow(frontier, shape.branches, shape.new)
        families = [[path + new for new in branches] for path, branches in zip(frontier, grown, strict=True)]
        asked = time.perf_counter()
        values = backend.value(families, problem)
        tally.scoring += time.perf_counter() - asked
        tally.expanding += asked - began
        worth = [value for family in values for value in family]
        children = [path for family in families for path in family]
        tally.expansions += len(frontier)
        tally.nodes += len(children)
        tally.sampled += sum(len(new) for branches in grown for new in branches)
        tally.questions += len(worth)
        best = sorted(range(len(children)), key=lambda n: -worth[n])[: shape.keep]
        frontier = [children[n] for n in best]
    tally.seconds = time.perf_counter() - start
    tally.prefilled += backend.prefilled()
    return tally


def first_label(logprobs: Sequence[float], labels: tuple[list[int], list[int]], ids: Sequence[int]) -> float:
    """Probability of the first of two labels, from log-probabilities of token ``ids``."""
    masses = [sum(math.exp(p) for p, token in zip(logprobs, ids, strict=True) if token in label) for label in labels]
    return masses[0] / sum(masses)


def to_json(shape: PeerShape, problem: PeerProblem) -> dict[str, Any]:
    """A search request for a child process."""
    return {"shape": asdict(shape), "problem": asdict(problem)}


def from_json(asked: dict[str, Any]) -> tuple[PeerShape, PeerProblem]:
    """Parse a request of :func:`to_json`."""
    prompt, question, labels = (asked["problem"][name] for name in ("prompt", "question", "labels"))
    return PeerShape(**asked["shape"]), PeerProblem(prompt, question, (labels[0], labels[1]))
