"""A model of the tree of a running search, updated by events in O(depth) time each."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from rksc_tot.core.events import Added, BudgetHit, Event, Finished, Merged, Pruned, Rejected, Scored


@dataclass(slots=True)
class NodeView:
    """A node of the view.

    ``closing``, ``observation``, ``exact``, ``score_exact``: as in :class:`~rksc_tot.core.tree.Node`. ``below``: number of nodes,
    pruned nodes, rejected and merged thoughts under it.
    """

    id: int
    parent: int | None
    depth: int
    text: str
    score: float | None = None
    count: int = 1
    pruned: str | None = None
    answer: str | None = None
    closing: str | None = None
    observation: str | None = None
    exact: bool = True
    score_exact: bool = True
    below: Counter[str] = field(default_factory=Counter)


class TreeView:
    """The tree of a running search. Update it with :meth:`apply`; read ``nodes``, ``children``, :meth:`open_nodes`."""

    def __init__(self) -> None:
        self.nodes: dict[int, NodeView] = {0: NodeView(0, None, 0, "")}
        self.children: dict[int, list[int]] = defaultdict(list)
        self.stopped = ""
        self.added: set[str] = set()
        """Which texts of the task are on paths: ``closing``, ``observation``."""
        self.approximate = False
        """Whether a node or a score used approximate KV."""
        self._frontier: set[int] = {0}
        self._finished: set[int] = set()
        self._best: int | None = None

    @property
    def totals(self) -> Counter[str]:
        """Counts over the whole tree: ``nodes`` (without the root), ``pruned``, ``rejected``, ``merged``."""
        return self.nodes[0].below

    @property
    def best(self) -> int:
        """The chosen node; without one the best complete node; without one the best of the deepest nodes not pruned."""
        if self._best is not None:
            return self._best
        if self._finished:
            return max(self._finished, key=lambda id: (self._score(id), -id))
        return max(self._alive(), key=lambda id: (self.nodes[id].depth, self._score(id), -id), default=0)

    def set_best(self, best: int) -> None:
        """Set the node that the search has chosen."""
        if best in self.nodes:
            self._best = best

    def apply(self, event: Event) -> None:
        """Apply one event. Events about unknown nodes are ignored."""
        match event:
            case Added(node=node):
                if node.id in self.nodes:  # the root has an event too
                    return
                parent = node.parent or 0
                self.nodes[node.id] = NodeView(
                    node.id, parent, node.depth, node.text, node.score, node.count,
                    closing=node.closing, observation=node.observation, exact=node.exact,
                )  # fmt: skip
                self.approximate |= not node.exact
                self.added |= {name for name in ("closing", "observation") if getattr(node, name) is not None}
                self.children[parent].append(node.id)
                self._frontier.discard(parent)
                self._frontier.add(node.id)
                self._count(parent, "nodes")
            case Merged(parent=parent, into=into):
                if into in self.nodes:
                    self.nodes[into].count += 1
                self._count(parent, "merged")
            case Rejected(parent=parent):
                self._count(parent, "rejected")
            case Scored(node=id, score=score, exact=exact) if id in self.nodes:
                self.nodes[id].score, self.nodes[id].score_exact = score, exact
                self.approximate |= not exact
            case Pruned(node=id, reason=reason) if id in self.nodes and self.nodes[id].pruned is None:
                self.nodes[id].pruned = reason
                self._frontier.discard(id)
                parent_of = self.nodes[id].parent
                if parent_of is not None:
                    self._count(parent_of, "pruned")
            case Finished(node=id, answer=answer) if id in self.nodes:
                self.nodes[id].answer = answer
                self._finished.add(id)
            case BudgetHit(reason=reason):
                self.stopped = reason
            case _:
                pass

    def lineage(self, id: int) -> list[int]:
        """Ids from the root to a node."""
        found: list[int] = []
        at: int | None = id
        while at is not None:
            found.append(at)
            at = self.nodes[at].parent
        return found[::-1]

    def open_nodes(self, lines: int) -> set[int]:
        """The nodes to show, at most about ``lines``: the best path, then the frontier, best nodes first."""
        opened = set(self.lineage(self.best))
        for id in sorted(self._alive(), key=lambda id: (-self._score(id), id)):
            new = set(self.lineage(id)) - opened
            if len(opened) + len(new) > lines:
                break
            opened |= new
        return opened

    def folded(self, id: int, opened: set[int]) -> Counter[str]:
        """Counts of what is hidden under a node: its children that are not shown, and all below them."""
        hidden: Counter[str] = Counter()
        closed = [child for child in self.children[id] if child not in opened]
        for child in closed:
            hidden["nodes"] += 1
            hidden["pruned"] += self.nodes[child].pruned is not None
            hidden.update(self.nodes[child].below)
        for kind in ("rejected", "merged"):
            hidden[kind] += self.nodes[id].below[kind] - sum(
                self.nodes[child].below[kind] for child in self.children[id]
            )
        return +hidden

    def _alive(self) -> list[int]:
        return [id for id in self._frontier if all(self.nodes[at].pruned is None for at in self.lineage(id))]

    def _score(self, id: int) -> float:
        score = self.nodes[id].score
        return float("-inf") if score is None else score

    def _count(self, id: int, kind: str) -> None:
        if id in self.nodes:
            for at in self.lineage(id):
                self.nodes[at].below[kind] += 1
