"""The tree of thoughts: a networkx graph whose nodes are typed, exported and reloaded without KV."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

import networkx as nx
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from rksc_tot.errors import ConfigError, MissingExtra
from rksc_tot.task import Path, Thought


class Node(BaseModel):
    """One thought in the tree."""

    model_config = ConfigDict(extra="forbid")

    id: int
    """Order of creation, 0 for the root."""
    parent: int | None = None
    depth: int = Field(0, ge=0)
    branch: str = ""
    """Branch numbers from the root, such as ``0.3.1``: the name random streams are derived from."""
    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Log-probability of each token under the model, nats."""
    score: float | None = None
    labels: dict[str, float] = Field(default_factory=dict)
    """What the verifier saw: label probabilities and ``outside``."""
    count: int = Field(1, ge=1)
    """How many thoughts led here: identical texts and merged transpositions."""
    finished: bool = False
    """The task calls the path a solution (complete, not necessarily right)."""
    pruned: str | None = None
    """Why the node was dropped; None while it is alive."""
    exact: bool = True
    """False if it was computed under a lossy ancestor."""

    _handle: Any = PrivateAttr(None)
    _thought: Thought | None = PrivateAttr(None)

    @property
    def likelihood(self) -> float:
        """Mean log-probability a token, nats; 0.0 without tokens."""
        return sum(self.logprobs) / len(self.logprobs) if self.logprobs else 0.0


class ReasoningTree:
    """A tree of :class:`Node`. ``add`` is O(1); ``graph`` is the networkx.DiGraph, node data under the key ``node``."""

    def __init__(self) -> None:
        self.graph: nx.DiGraph[int] = nx.DiGraph()

    def __len__(self) -> int:
        return len(self.graph)

    def __getitem__(self, id: int) -> Node:
        node: Node = self.graph.nodes[id]["node"]
        return node

    def __iter__(self) -> Iterator[Node]:
        return (data["node"] for _, data in self.graph.nodes(data=True))

    @property
    def root(self) -> Node:
        """The node without a thought."""
        return self[0]

    def add(self, parent: Node | None = None, **fields: Any) -> Node:
        """Append a node under ``parent`` (None: the root) and return it."""
        if (parent is None) != (len(self.graph) == 0):
            raise ConfigError("a tree has exactly one root", hint="give every later node its parent")
        depth = parent.depth + 1 if parent else 0
        node = Node(id=len(self.graph), parent=parent.id if parent else None, depth=depth, **fields)
        self.graph.add_node(node.id, node=node)
        if parent:
            self.graph.add_edge(parent.id, node.id)
        return node

    def children(self, node: Node) -> list[Node]:
        """Children in order of creation."""
        return [self[id] for id in self.graph.successors(node.id)]

    def lineage(self, node: Node) -> list[Node]:
        """Nodes from the root to ``node``, both included."""
        found = [node]
        while node.parent is not None:
            node = self[node.parent]
            found.append(node)
        return found[::-1]

    def path(self, node: Node) -> Path:
        """The thoughts from the root to ``node``."""
        return Path(n._thought or Thought(n.text) for n in self.lineage(node)[1:])

    # -- export and reload, without KV -------------------------------------------------------------------------------

    def to_json(self) -> str:
        """All nodes as a JSON array."""
        return json.dumps([node.model_dump(mode="json") for node in self], ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> ReasoningTree:
        """The tree :meth:`to_json` wrote. Raises ConfigError if it is not one."""
        try:
            records = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"not a tree in JSON: {error}") from None
        return cls._build(records)

    def to_graphml(self, file: FilePath | str) -> None:
        """Write GraphML; each node has its fields as attributes and its whole record in ``record``."""
        nx.write_graphml(self._plain(), file)

    @classmethod
    def from_graphml(cls, file: FilePath | str) -> ReasoningTree:
        """The tree :meth:`to_graphml` wrote."""
        try:
            graph = nx.read_graphml(file, node_type=int)
            records = [json.loads(data["record"]) for _, data in sorted(graph.nodes(data=True))]
        except (KeyError, ValueError, SyntaxError, nx.NetworkXError) as error:
            raise ConfigError(f"{str(file)!r} is not a tree in GraphML: {error}") from None
        return cls._build(records)

    def to_dot(self, file: FilePath | str) -> None:
        """Write Graphviz DOT (extra ``dot``)."""
        _pydot()
        nx.nx_pydot.write_dot(_quoted(self._plain()), file)

    @classmethod
    def from_dot(cls, file: FilePath | str) -> ReasoningTree:
        """The tree :meth:`to_dot` wrote (extra ``dot``)."""
        _pydot()
        try:
            graph = nx.nx_pydot.read_dot(file)
            nodes = sorted((int(id), data) for id, data in graph.nodes(data=True) if "record" in data)
            records = [json.loads(bytes.fromhex(data["record"].strip('"')).decode()) for _, data in nodes]
        except (ValueError, TypeError, IndexError) as error:
            raise ConfigError(f"{str(file)!r} is not a tree in DOT: {error}") from None
        return cls._build(records)

    def _plain(self) -> nx.DiGraph[int]:
        """The graph with plain string and number attributes only."""
        graph: nx.DiGraph[int] = nx.DiGraph()
        for node in self:
            score = {} if node.score is None else {"score": node.score}
            graph.add_node(
                node.id, text=_printable(node.text), depth=node.depth, pruned=_printable(node.pruned or ""),
                finished=node.finished, record=json.dumps(node.model_dump(mode="json")), **score,
            )  # fmt: skip
        graph.add_edges_from(self.graph.edges)
        return graph

    @classmethod
    def _build(cls, records: Any) -> ReasoningTree:
        tree = cls()
        try:
            for record in records:
                fields = dict(record)
                parent = fields.pop("parent")
                id, depth = fields.pop("id"), fields.pop("depth")
                node = tree.add(None if parent is None else tree[parent], **fields)
                if (node.id, node.depth) != (id, depth):
                    raise ConfigError(f"node {id} is out of place in the file")
        except (KeyError, TypeError, ValidationError) as error:
            raise ConfigError(f"not a tree: {error}") from None
        return tree


def _printable(text: str) -> str:
    """Text without the control characters XML forbids."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def _quoted(graph: nx.DiGraph[int]) -> nx.DiGraph[int]:
    """Attributes as DOT strings: the record in hex, so that no quoting can break it."""
    for _, data in graph.nodes(data=True):
        label = data["text"].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        record = data["record"].encode().hex()
        data.clear()
        data.update(label=f'"{label}"', record=f'"{record}"')
    return graph


def _pydot() -> None:
    try:
        import pydot  # noqa: F401
    except ImportError:
        raise MissingExtra("DOT needs pydot", hint="pip install 'rksc_tot[dot]'") from None
