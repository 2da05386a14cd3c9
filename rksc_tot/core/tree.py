"""The tree of thoughts: a networkx graph of typed nodes, which can be exported and reloaded without KV."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

import networkx as nx
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from rksc_tot.core.errors import ConfigError, MissingExtra
from rksc_tot.core.plugins.settings import sentence
from rksc_tot.core.plugins.user_code import error_text, shown
from rksc_tot.core.task import Path, Thought, ThoughtFinish


class WrittenBlock(BaseModel):
    """What a thinking model wrote before a thought (see :class:`~rksc_tot.core.task.Thinking`).

    * ``text``: the text between the markers. ``tokens``: the sampled tokens. ``forced_close``: whether the search closed it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str = ""
    tokens: int = Field(0, ge=0)
    forced_close: bool = False


class SurroundingText(BaseModel):
    """What is on the path around the text of a thought, as in :class:`~rksc_tot.core.task.Thought`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lead: str = ""
    closing: str | None = None
    ending: str = "\n"
    observation: str | None = None

    @classmethod
    def of(cls, thought: Thought) -> SurroundingText | None:
        """That of a thought; None if it is but a line."""
        around = cls(lead=thought.lead, closing=thought.closing, ending=thought.ending, observation=thought.observation)
        return None if around == LINE else around


LINE = SurroundingText()


class Node(BaseModel):
    """One thought in the tree.

    * ``id``: order of creation, 0 for the root. ``parent``: the id of its parent. ``depth``: thoughts from the root.
    * ``branch``: branch numbers from the root, such as ``0.3.1``. It seeds the random streams of the node.
    * ``text``: the thought. ``tokens``: its tokens, ``logprobs``: the log-probability of each under the model, nats; both are
      empty for proposed thoughts and for thoughts whose text the task changed.
    * ``constrained_logprobs``: the log-probability of each token among those that the task's constraint allowed, nats; empty
      without a constraint. Scores and :attr:`likelihood` are made from ``logprobs``.
    * ``finish``: what ended the thought, as in :class:`~rksc_tot.core.task.Thought`; None at the root. ``eos`` without text:
      the model wrote only an end-of-text token, which completes the path of the parent.
    * ``score``: given by the verifier. ``labels``: the label probabilities the score was made from and, where the whole
      distribution was read, ``outside``, the probability of anything else; of an ensemble,
      the scores of its members.
    * ``layer``: after how many decoder layers the verifier's pass stopped, None if it ran all of them.
    * ``skipped``: True if the verifier was not asked; the score is then exp of the mean log-probability of its tokens.
    * ``thinking_block``: the block of a thinking model before the thought; None without one. ``thinking``, ``thinking_tokens``,
      ``forced_close`` read it.
    * ``count``: how many thoughts led here: identical texts, merged states and merged siblings.
    * ``finished``: the path is complete, not necessarily right. ``pruned``: why the node was dropped, None while it is alive.
    * ``around``: what is on the path around the text; None if the thought is but a line. ``closing``, ``observation`` read the
      texts that the task put there; None without one. ``tokens`` leaves out their tokens.
    * ``exact``: False if it was generated from approximate KV. ``score_exact``: False if its score was read from such KV.
    """

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")

    id: int
    parent: int | None = None
    depth: int = Field(0, ge=0)
    branch: str = ""
    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    constrained_logprobs: tuple[float, ...] = ()
    finish: ThoughtFinish | None = None
    score: float | None = None
    labels: dict[str, float] = Field(default_factory=dict)
    layer: int | None = Field(None, ge=1)
    skipped: bool = False
    thinking_block: WrittenBlock | None = None
    count: int = Field(1, ge=1)
    finished: bool = False
    pruned: str | None = None
    around: SurroundingText | None = None
    exact: bool = True
    score_exact: bool = True

    _handle: Any = PrivateAttr(None)
    _thought: Thought | None = PrivateAttr(None)
    _open_block: Any = PrivateAttr(None)

    @property
    def thought(self) -> Thought:
        """The thought as the task returned it; in a reloaded tree it has no state."""
        if self._thought is not None:
            return self._thought
        return Thought(self.text, None, self.finish or "stop", **(self.around or LINE).model_dump())

    @property
    def closing(self) -> str | None:
        """The text that asked for the answer, if the thought is the reply to it."""
        return None if self.around is None else self.around.closing

    @property
    def observation(self) -> str | None:
        """The text that the task put on the path after the thought."""
        return None if self.around is None else self.around.observation

    @property
    def thinking(self) -> str:
        """The text of the thinking block; empty without one."""
        return "" if self.thinking_block is None else self.thinking_block.text

    @property
    def thinking_tokens(self) -> int:
        """The sampled tokens of the thinking block."""
        return 0 if self.thinking_block is None else self.thinking_block.tokens

    @property
    def forced_close(self) -> bool:
        """Whether the search closed the thinking block."""
        return self.thinking_block is not None and self.thinking_block.forced_close

    @property
    def ends_parent(self) -> bool:
        """Whether the node stands for the end of the text right after its parent's thought."""
        return self.finish == "eos" and not self.text and self._thought is None

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

    def __eq__(self, other: object) -> bool:
        """Whether all nodes are equal; handles are not compared."""
        return isinstance(other, ReasoningTree) and self.to_records() == other.to_records()

    __hash__ = None  # type: ignore[assignment]  # a tree changes while it grows

    def __repr__(self) -> str:
        return f"<ReasoningTree of {len(self)} nodes, depth {max((node.depth for node in self), default=0)}>"

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
        self._insert(node)
        return node

    def _insert(self, node: Node) -> None:
        node.model_fields_set.clear()  # unused, and half a kilobyte a node
        self.graph.add_node(node.id, node=node)
        if node.parent is not None:
            self.graph.add_edge(node.parent, node.id)

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
        """The thoughts from the root to ``node``. A node that ends its parent's path adds no thought to it."""
        thoughts = [n.thought for n in self.lineage(node)[1:] if not n.ends_parent]
        if node.ends_parent and thoughts:
            thoughts[-1] = replace(thoughts[-1], finish="eos")
        return Path(thoughts)

    # -- export and reload, without KV -------------------------------------------------------------------------------

    def to_json(self, file: FilePath | str | None = None) -> str:
        """All nodes as a JSON array; also written to ``file`` if it is given.

        Infinite numbers and NaN are strings, such as ``"-Infinity"``.
        """
        text = json.dumps(self.to_records(), ensure_ascii=False)
        if file is not None:
            with _writing(file):
                FilePath(file).write_text(text, encoding="utf-8")
        return text

    def to_records(self) -> list[dict[str, Any]]:
        """All nodes as dicts of JSON values, in order of creation."""
        return [json.loads(node.model_dump_json()) for node in self]

    @classmethod
    def from_json(cls, source: FilePath | str) -> ReasoningTree:
        """Reload a tree that :meth:`to_json` wrote. ``source``: the JSON text as a string, or its file as a ``pathlib.Path``.

        Raises
        ------
        ConfigError
            If the source cannot be read or holds no tree.
        """
        with _reading(repr(str(source)) if isinstance(source, FilePath) else "the text"):
            text = source.read_text(encoding="utf-8") if isinstance(source, FilePath) else source
            return cls.from_records(json.loads(text))

    @classmethod
    def from_records(cls, records: object) -> ReasoningTree:
        """The tree of the records that :meth:`to_records` gave. Raises ConfigError if they do not form a tree."""
        if not isinstance(records, list) or not records:
            raise ConfigError(f"{shown(records)} is not a list of nodes")
        tree = cls()
        for at, record in enumerate(records):
            try:
                node = Node.model_validate(record)
            except ValidationError as error:
                raise ConfigError(f"node {at}: {sentence(error)}") from None
            around = (node.around or LINE).model_dump().values()
            texts = (node.branch, node.text, node.thinking, node.pruned, *around, *node.labels)
            if any("\ud800" <= c <= "\udfff" for text in texts if text for c in text):
                raise ConfigError(f"node {at} holds half a character (a lone surrogate)", hint="repair the text")
            parent = tree[node.parent] if node.parent is not None and 0 <= node.parent < at else None
            depth = parent.depth + 1 if parent else 0
            if (
                (node.id, node.depth) != (at, depth)
                or (parent is None) != (at == 0)
                or (at == 0 and node.parent is not None)
            ):
                raise ConfigError(f"node {at} is out of place", hint="each node comes after its parent")
            tree._insert(node)
        return tree

    def to_graphml(self, file: FilePath | str) -> None:
        """Write GraphML; each node has its fields as attributes and its whole record in ``record``."""
        with _writing(file):
            nx.write_graphml(self._plain(), file)

    def to_dot(self, file: FilePath | str) -> None:
        """Write Graphviz DOT (extra ``dot``): the edges, and each node with its text as the label."""
        try:
            import pydot  # noqa: F401
        except ImportError:
            raise MissingExtra("DOT needs pydot", hint="pip install 'rksc_tot[dot]'") from None
        with _writing(file):
            nx.nx_pydot.write_dot(_labelled(self._plain()), file)

    def _plain(self) -> nx.DiGraph[int]:
        """The graph with plain string and number attributes only."""
        graph: nx.DiGraph[int] = nx.DiGraph()
        for node in self:
            score = {} if node.score is None else {"score": node.score}
            graph.add_node(
                node.id, text=_printable(node.text), depth=node.depth, pruned=_printable(node.pruned or ""),
                finished=node.finished, record=json.dumps(json.loads(node.model_dump_json())), **score,
            )  # fmt: skip
        graph.add_edges_from(self.graph.edges)
        return graph


@contextmanager
def _reading(source: str) -> Iterator[None]:
    """Raise a ConfigError for every error of reading a tree in JSON from ``source``."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror or error}") from None
    except ConfigError as error:
        raise ConfigError(f"{source} is not a tree in JSON: {error}") from None
    except Exception as error:
        raise ConfigError(f"{source} is not a tree in JSON: {' '.join(error_text(error).split())}") from None


@contextmanager
def _writing(file: FilePath | str) -> Iterator[None]:
    """Raise a ConfigError for every OSError of writing ``file``."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{str(file)!r} cannot be written: {error.strerror or error}") from None


def _printable(text: str) -> str:
    """Text without the control characters XML forbids."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def _labelled(graph: nx.DiGraph[int]) -> nx.DiGraph[int]:
    """The graph with the text of each node as its DOT label."""
    for _, data in graph.nodes(data=True):
        label = data["text"].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        data.clear()
        data["label"] = f'"{label}"'
    return graph
