"""Which complete path is the answer."""

from __future__ import annotations

from typing import Any

from rksc_tot.core.task import Task
from rksc_tot.core.tree import Node, ReasoningTree
from rksc_tot.policies.ranking import ranked, rounded
from rksc_tot.search.task_calls import read_answer
from rksc_tot.search.validation import Fault


class Answers:
    """The complete paths of a tree, those of them that a strategy has handed in, and their answers.

    Parameters
    ----------
    task, problem
        Of the search.
    tree : ReasoningTree
    """

    def __init__(self, task: Task, problem: Any, tree: ReasoningTree) -> None:
        self._task, self._problem, self._tree = task, problem, tree
        self._answers: dict[int, str | None] = {}
        self._values: dict[int, float | None] = {}
        self.faults: dict[int, str] = {}
        """By node: why no answer can be read off its path."""
        self.complete: list[Node] = []

    def answer(self, node: Node) -> str | None:
        """The answer of a complete path, None if the task cannot read one."""
        if node.id not in self._answers:
            self._answers[node.id] = self._read(node)
        return self._answers[node.id]

    def _read(self, node: Node) -> str | None:
        answer, why = read_answer(self._task, self._problem, self._tree.path(node))
        if answer is None:
            self.faults[node.id] = why
        return answer

    @property
    def works(self) -> bool:
        """Whether the task has given an answer."""
        return any(answer is not None for answer in self._answers.values())

    @property
    def fault(self) -> Fault | None:
        """How the task first failed on an answer."""
        return next((fault for fault in self.faults.values() if isinstance(fault, Fault)), None)

    def __contains__(self, node: Node) -> bool:
        return node.id in self._values

    def hand_in(self, node: Node, value: float | None) -> None:
        """Make a complete path a candidate; ``value`` None stands for its score."""
        self._values[node.id] = value

    def best(self) -> Node:
        """See ``Search.best``."""
        handed = [self._tree[id] for id in self._values]
        if handed:
            most = max(rounded(self._value(node)) for node in handed)
            return ranked(node for node in handed if rounded(self._value(node)) == most)[0]
        complete = [node for node in self.complete if node.pruned is None and self.answer(node) is not None]
        if complete:
            return ranked(complete)[0]
        nodes = [node for node in self._tree if node.pruned is None and node.parent is not None] or list(self._tree)
        depth = max(node.depth for node in nodes)
        return ranked(node for node in nodes if node.depth == depth)[0]

    def _value(self, node: Node) -> float | None:
        value = self._values[node.id]
        return node.score if value is None else value
