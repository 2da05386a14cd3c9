"""Chooses the answer among the complete paths of a tree, or says why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, Protocol

from rksc_tot.core.errors import TaskError
from rksc_tot.core.task import Task
from rksc_tot.core.tree import Node, ReasoningTree
from rksc_tot.policies.ranking import ranked, rounded
from rksc_tot.search.task_calls import HINT, read_answer, vote_of
from rksc_tot.search.validation import Fault


class Answers:
    """The complete paths of a tree, their answers, and the candidates that a strategy has handed in.

    Parameters
    ----------
    task, problem
        Of the search.
    tree : ReasoningTree
    """

    def __init__(self, task: Task, problem: Any, tree: ReasoningTree) -> None:
        self._task, self._problem, self._tree = task, problem, tree
        self._answers: dict[int, str | None] = {}
        self._votes: dict[int, Hashable] = {}
        self._values: dict[int, float | None] = {}
        self.faults: dict[int, str] = {}
        """For each node id without an answer, the reason."""
        self.complete: list[Node] = []

    def answer(self, node: Node) -> str | None:
        """The answer of a complete path, None if ``task.answer`` gives none."""
        if node.id not in self._answers:
            self._answers[node.id] = self._read(node)
        return self._answers[node.id]

    def vote(self, node: Node) -> Hashable | None:
        """The answer of a complete path as normalised for votes, None if there is no answer."""
        return None if self.answer(node) is None else self._votes[node.id]

    def _read(self, node: Node) -> str | None:
        answer, why = read_answer(self._task, self._problem, self._tree.path(node))
        vote = "" if answer is None else vote_of(self._task, answer)
        if isinstance(vote, Fault):
            answer, why = None, vote
        if answer is None:
            self.faults[node.id] = why
        self._votes[node.id] = vote
        return answer

    @property
    def works(self) -> bool:
        """Whether the task has given at least one answer."""
        return any(answer is not None for answer in self._answers.values())

    @property
    def fault(self) -> Fault | None:
        """The first failure of the task on an answer, None if there was none."""
        return next((fault for fault in self.faults.values() if isinstance(fault, Fault)), None)

    def __contains__(self, node: Node) -> bool:
        return node.id in self._values

    def hand_in(self, node: Node, value: float | None) -> None:
        """Make a complete path a candidate. ``value`` ranks it; None means its score."""
        self._values[node.id] = value

    def best(self) -> Node:
        """The best node, see :attr:`Search.best`."""
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

    def best_live(self, asked: Collection[int]) -> Node | None:
        """The best of the deepest nodes that can be closed: not pruned, not complete, not in ``asked`` (ids). None: no node."""
        live = [
            node
            for node in self._tree
            if not node.finished and node.pruned is None and node._handle is not None and node.id not in asked
        ]
        deepest = max((node.depth for node in live), default=0)
        return next(iter(ranked(node for node in live if node.depth == deepest)), None)

    def why_none(self, rejections: Mapping[str, int]) -> str | None:
        """Why a search that ran to its end has no answer, None if the rejections explain it. After a dash: what to do next."""
        if self.count_at_depth_limit():
            return too_deep(self._task.max_thoughts)
        pruned = next((node for node in self._tree if node.pruned is not None), None)
        if rejections or pruned is None:
            return None
        return f"every path was pruned (node {pruned.id}: {pruned.pruned}) - let the strategy keep more nodes"

    def count_at_depth_limit(self) -> int:
        """Number of thoughts that end an incomplete path of length ``max_thoughts``; 0 with a closing, which completes them."""
        most = self._task.max_thoughts
        if self._task.closing is not None:
            return 0
        return sum(node.count for node in self._tree if node.depth == most and not node.finished)

    def _value(self, node: Node) -> float | None:
        value = self._values[node.id]
        return node.score if value is None else value


def too_deep(most: int) -> str:
    """The reason for an incomplete path at the depth limit."""
    return f"no path was complete within max_thoughts {most} - raise it, or let is_solution accept shorter paths"


class FallibleCalls(Protocol):
    """A part of a search that calls the task, with the first failure of the task."""

    @property
    def works(self) -> bool:
        """Whether at least one call succeeded."""
        ...

    @property
    def fault(self) -> Fault | None:
        """The first failure, None if there was none."""
        ...


def check_task_works(parts: Sequence[FallibleCalls], warn: Callable[[str, str], None]) -> None:
    """Warn if the task failed on some thoughts or answers. Raises TaskError if it failed on all of them."""
    for part in parts:
        if part.fault is not None and not part.works:
            raise TaskError(
                f"the task failed on every thought or answer: {part.fault}", hint=HINT
            ) from part.fault.error
        if part.fault is not None:
            warn("task", f"the task failed on some thoughts, which were rejected: {part.fault}; {HINT}")


def all_rejected(rejections: Counter[str]) -> str:
    """The warning for a search that rejected every thought."""
    [(reason, times)] = rejections.most_common(1)
    total = rejections.total()
    rejected = "the only thought was" if total == 1 else f"all {total} thoughts were"
    share = "" if times == total else f", {times} of them"
    return f"{rejected} rejected{share} because: {reason}"
