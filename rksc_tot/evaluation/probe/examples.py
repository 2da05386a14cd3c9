"""Labelled hidden states: trees of the model's own thoughts, labelled by rollouts or by the task's exact solver."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.seeds import stream_key
from rksc_tot.core.task import Task
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import StatesEngine
from rksc_tot.search import Search
from rksc_tot.search.scoring import Score
from rksc_tot.search.task_calls import read_verdict, validated
from rksc_tot.verifiers.base import Verifier
from rksc_tot.verifiers.probe import Labels


@dataclass(frozen=True)
class LabelledThought:
    """One thought: its hidden states ``[L, H]`` after each layer, its label, 0..1, and its depth."""

    states: NDArray[np.float32]
    label: float
    depth: int


class StateReader(Verifier):
    """Makes the engine keep the hidden states of thoughts; gives no scores."""

    name: str = "state reader"
    free: ClassVar[bool] = True
    reads_states: ClassVar[bool] = True

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """No score."""
        return [None] * len(nodes)


async def examples_of(
    task: Task, problem: Any, engine: StatesEngine, labels: Labels, k: int, width: int, seed: int
) -> list[LabelledThought]:
    """Grow a tree of the model's own thoughts, and label them.

    Each level is ``k`` thoughts below at most ``width`` random nodes of the level before. With ``rollouts``, the label of a
    complete path is whether its answer is right, and that of any other node the mean over its children, each as often as it was
    written; nodes that were not grown have none. With ``checker``, the label is ``task.promising``.
    """
    search = Search(task, validated(task, problem), engine, StateReader(), seed=seed)
    try:
        grown = await grow(search, k, width)
        found = _by_rollouts(search, grown) if labels == "rollouts" else _by_checker(search)
        return [
            LabelledThought(states, label, node.depth)
            for node, label in found
            if (states := _states(engine, node)) is not None
        ]
    finally:
        search.close()


async def grow(search: Search, k: int, width: int) -> set[int]:
    """Grow a tree: each level is ``k`` thoughts below at most ``width`` random nodes. Returns the ids of the expanded nodes."""
    level, grown = [search.root], set()
    while level:
        grown |= {node.id for node in level}
        children = await search.expand(level, k, merge=False)
        going = [node for node in children if not node.finished and node.depth < search.task.max_thoughts]
        rng = random.Random(stream_key(search.seed, str(search.problem), "probe", going[0].depth if going else 0))
        level = rng.sample(going, min(width, len(going)))
    return grown


def _by_rollouts(search: Search, grown: set[int]) -> list[tuple[Node, float]]:
    values: dict[int, float] = {}
    for node in reversed([*search.tree]):
        children = [child for child in search.tree.children(node) if child.id in values]
        if node.finished or node.depth == search.task.max_thoughts:
            answer = search.answer(node) if node.finished else None
            right = None if answer is None else read_verdict(search.task, search.problem, answer)[0]
            if answer is not None and right is None:
                raise ConfigError("rollouts need a task whose check is True or False", hint="write Task.check")
            values[node.id] = float(right or False)
        elif node.id in grown:
            written = sum(child.count for child in children)
            values[node.id] = sum(child.count * values[child.id] for child in children) / max(1, written)
    return [(node, values[node.id]) for node in search.tree if node.id in values and node.parent is not None]


def _by_checker(search: Search) -> list[tuple[Node, float]]:
    found = []
    for node in search.tree:
        label = None if node.parent is None else search.task.promising(search.problem, search.path(node))
        if node.parent is not None and label is None:
            raise ConfigError(
                f"the task {search.task.name!r} cannot tell which thoughts are promising",
                hint="write Task.promising, or use --labels rollouts",
            )
        if label is not None:
            found.append((node, float(label)))
    return found


def _states(engine: StatesEngine, node: Node) -> NDArray[np.float32] | None:
    found = [engine.hidden_state(node._handle, layer) for layer in range(1, engine.layers + 1)]
    kept = [state for state in found if state is not None]
    return np.array(kept, dtype=np.float32) if len(kept) == len(found) else None
