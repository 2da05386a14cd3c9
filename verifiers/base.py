"""The base class of verifiers.

For a function of (problem, path), use the decorator ``@verifier``, see :mod:`rksc_tot.verifiers.function`. Write a class if the
verifier needs the search: its engine, its tree, or several nodes at once. Add it to ``VERIFIERS`` in ``registry.py``, or to the
entry-point group ``rksc_tot.verifiers`` of your package. The contract tests in ``tests/verifiers`` then cover it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import ConfigDict

from rksc_tot.core.errors import ContextOverflow, VerifierError
from rksc_tot.core.plugins.settings import Settings
from rksc_tot.core.plugins.user_code import UserCodeError
from rksc_tot.core.task import Path, Question, Task
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import Engine, LabelRequest, LabelScores, Reader
from rksc_tot.search import Search
from rksc_tot.search.scoring import Score

T = TypeVar("T")


class PathView(Path):
    """A path as a function verifier sees it.

    It is a :class:`~rksc_tot.core.task.Path`, so ``path.text``, ``path.state``, ``path[-1]`` and ``len(path)`` work. Beside them:

    * ``texts``, ``states``: text and state of each thought.
    * ``logprobs``: log-probabilities (nats) of the tokens of each thought under the model; empty for a thought that was proposed,
      or whose text the task changed.
    * ``finished``: whether the path is complete.
    * ``exact``: whether no thought was generated from approximate KV.
    """

    logprobs: tuple[tuple[float, ...], ...]
    finished: bool
    exact: bool

    @classmethod
    def of(cls, search: Search, node: Node) -> PathView:
        """The path of a node."""
        view = cls(search.path(node))
        nodes = search.tree.lineage(node)[1:]
        view.logprobs = tuple(thought.logprobs for thought in nodes[: len(view)])
        view.finished, view.exact = node.finished, all(thought.exact for thought in nodes)
        return view

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each thought."""
        return tuple(thought.text for thought in self)

    @property
    def states(self) -> tuple[Any, ...]:
        """The state of each thought."""
        return tuple(thought.state for thought in self)


class Verifier(Settings):
    """Scores nodes; higher is better. Verifiers are stateless: one object serves many searches.

    * ``name``: the name in messages and reports.
    * ``free``: whether scores need no forward pass, so that they do not count as verifier calls.
    * ``reads_states``: whether it reads the hidden states at the ends of thoughts, so that the engine must keep them.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)
    kind = "verifier"
    name: str = ""
    free: ClassVar[bool] = False
    reads_states: ClassVar[bool] = False

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """One entry for each node, in order.

        * a finite number: the score (True is 1, False is 0);
        * an :class:`~rksc_tot.search.scoring.Assessment`: the score with label probabilities, exit layer and exactness, which
          the search writes to the node;
        * a VerifierError: why the node could not be scored; the node is pruned;
        * None: the time or the tokens ran out.

        An exception ends the search.
        """
        raise NotImplementedError

    def bounds(self, search: Search, node: Node) -> tuple[float, float] | None:
        """The lowest and highest score that a node can get. None if unknown; verify skip then never skips the node.

        Skipped siblings (:mod:`rksc_tot.policies.early_exit.cgee`) get a score between the two.
        """
        return None

    def check(self, engine: Engine, task: Task) -> None:
        """Check before a search that the verifier fits model and task. Raises ConfigError if it does not."""

    def reader(self, engine: Engine) -> Reader:
        """The engine that answers its label requests: that of the search, unless the verifier has its own."""
        return engine

    def labels_for(self, question: Question | None) -> tuple[str, ...]:
        """The labels that are read where the task asks ``question``; empty if scores do not come from label probabilities.

        Only a verifier with labels can be calibrated to exit early.
        """
        return ()

    def fingerprint(self) -> dict[str, Any]:
        """The name and the settings that a calibration is bound to."""
        return self.describe()

    def release(self, search: Search) -> None:
        """Release what was kept for a search that ends."""

    def failure(self, node: Node, what: object, hint: str = "") -> VerifierError:
        """The error for a node that could not be scored. An exception of user code becomes its cause."""
        error = VerifierError(f"verifier {self.name!r} failed on node {node.id}: {what}", hint=hint)
        error.__cause__ = what.error if isinstance(what, UserCodeError) else None
        return error


async def ask_labels(
    search: Search, requests: Sequence[LabelRequest], nodes: Sequence[Node] | None = None
) -> list[LabelScores | ContextOverflow | None]:
    """Label probabilities of all requests, None if the time ran out. ``nodes``: as in :meth:`Search.label`.

    If a request overflows the context, all requests are sent again one by one.
    """

    async def ask(some: Sequence[int]) -> Sequence[LabelScores | None]:
        given = None if nodes is None else [nodes[at] for at in some]
        return await search.label([requests[at] for at in some], given)

    return await each_fitting(ask, len(requests))


async def each_fitting(ask: Callable[[Sequence[int]], Awaitable[Sequence[T]]], count: int) -> list[T | ContextOverflow]:
    """The replies of ``ask`` to requests 0 to ``count``; if one overflows the context, each is asked alone, and has its error."""
    if not count:
        return []
    try:
        return [*await ask(range(count))]
    except ContextOverflow as error:
        if count == 1:
            return [error]
    replies: list[T | ContextOverflow] = []
    for at in range(count):
        try:
            replies += await ask([at])
        except ContextOverflow as error:
            replies.append(error)
    return replies


def label_shares(reply: LabelScores) -> dict[str, float]:
    """The probability of each label and, if it was read, ``outside``."""
    outside = {} if reply.outside is None else {"outside": reply.outside}
    return {**reply.probabilities, **outside}
