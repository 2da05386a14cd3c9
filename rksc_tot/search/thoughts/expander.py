"""Expands nodes of one tree: from the nodes that a strategy chose to their new children."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.core.task import Task
from rksc_tot.core.tree import Node, ReasoningTree
from rksc_tot.engine.base import Engine, Sampling
from rksc_tot.search.answers import Answers
from rksc_tot.search.approximate.approximations import Approximations
from rksc_tot.search.limits import Limits
from rksc_tot.search.thoughts.accept_or_merge import TreeBuilder
from rksc_tot.search.thoughts.closing import Closer
from rksc_tot.search.thoughts.observation import Observer
from rksc_tot.search.thoughts.thought_generator import ThoughtGenerator

LAST_CLOSINGS = 3
"""Most paths that are closed at the end of a search without an answer, one after the other."""


class Expander:
    """Generates thoughts and closings after nodes, and makes nodes of them.

    Parameters
    ----------
    task, problem, engine, tree, limits, answers, sampling, approximations
        Of the search.
    names : tuple
        Seed and problem: the beginning of every random stream's name.
    states : bool
        Whether the verifier reads the hidden states at the ends of thoughts.
    emit : callable
        Called with the kind and the fields of every event.

    Attributes
    ----------
    generator, observer, builder, closer
        Its parts.
    """

    def __init__(
        self,
        task: Task,
        problem: Any,
        engine: Engine,
        tree: ReasoningTree,
        limits: Limits,
        answers: Answers,
        names: tuple[object, ...],
        sampling: Sampling,
        states: bool,
        approximations: Approximations,
        emit: Callable[..., None],
    ) -> None:
        self._engine, self._tree, self._limits, self._answers = engine, tree, limits, answers
        self._approximations = approximations
        self._closing_tokens = task.closing_tokens
        self.closer = closer = Closer(task, problem, engine, names)
        self.generator = ThoughtGenerator(
            task, problem, engine, limits.account, sampling, names, closer, approximations, states
        )
        self.observer = Observer(task, problem, tree, limits)
        self.builder = TreeBuilder(
            task, problem, engine, tree, limits, answers, closer, emit, approximations.sibling_merging
        )

    async def expand(
        self, nodes: Sequence[Node], k: int | Sequence[int], temperature: float | None, round: int, merge: bool
    ) -> list[Node]:
        """The new children of nodes, see :meth:`Search.expand`."""
        counts = [k] * len(nodes) if isinstance(k, int) else list(k)
        if len(counts) != len(nodes) or any(count < 1 for count in counts):
            raise ConfigError(f"expand needs a k of at least 1 for each of {len(nodes)} nodes, not {shown(k)}")
        for node in nodes:
            if node.pruned is not None:
                raise ConfigError(f"node {node.id} cannot be expanded: it was pruned ({node.pruned})")
        wanted = [
            (node, 1 if self.closer.due(node) else count)
            for node, count in zip(nodes, counts, strict=True)
            if self.closer.grows(node)
        ]
        return await self._grow(wanted, temperature, round, merge) if wanted else []

    async def close_best(self, again: bool = False) -> list[Node]:
        """Close the best path that can be closed, with the reserve of the budget. The new child, or no node.

        ``again``: the reserve was spent before, so it is made again from what is left of the budget.
        """
        node = self._answers.best_live(self.closer.asked)
        if node is None or self._limits.ended or self._limits.late():
            return []
        if again and not self._limits.reserve(self._closing_tokens):
            self._limits.release_reserve()
            return []
        self.closer.end(node)
        if self._limits.account.kv_short:
            self._keep_only(node)
        with self._limits.spending_reserve():
            found = await self._grow([(node, 1)], None, 0, False)
        self.closer.asked.add(node.id)  # also if the budget cut the reply off
        return found

    def release(self, node: Node) -> None:
        """Release the handle of a node, if it has one."""
        if node._handle is not None:
            self._engine.release(node._handle)
            node._handle = None

    def _keep_only(self, node: Node) -> None:
        """Release the handles of all other nodes but the root, which are not needed any more, to make room for KV."""
        for other in self._tree:
            if other.parent is not None and other is not node:
                self.release(other)

    async def _grow(
        self, wanted: Sequence[tuple[Node, int]], temperature: float | None, round: int, merge: bool
    ) -> list[Node]:
        limits = self._limits
        with limits.ledger.phase("expand"):
            admitted = wanted if limits.account.spends_reserve else limits.admit_thoughts(wanted)
            asked = [(node, self._tree.path(node), count) for node, count in admitted]
            candidates, cut = await self.generator.generate(asked, temperature=temperature, round=round)
            if cut:
                limits.cut_short()
            try:
                candidates = await self.observer.observe(candidates)
            except BaseException:
                self.builder.discard(candidates)
                raise
            children = self.builder.build(candidates, merge)
            await self._approximations.audit(children)
            return children
