"""Builds the tree: each candidate thought becomes a node, is merged into a node, or is rejected."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from rksc_tot.core.errors import ContextOverflow
from rksc_tot.core.events import Added, Merged, Rejected
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code
from rksc_tot.core.task import Task
from rksc_tot.core.tree import Node, ReasoningTree, SurroundingText
from rksc_tot.engine.base import Engine
from rksc_tot.search.answers import Answers
from rksc_tot.search.approximate.sibling_merging import SiblingMerging
from rksc_tot.search.limits import Limits
from rksc_tot.search.task_calls import END, AcceptedThought, follow_thought, parse_thought
from rksc_tot.search.thoughts.closing import Closer
from rksc_tot.search.thoughts.observation import text_on_path
from rksc_tot.search.thoughts.thinking import continued
from rksc_tot.search.thoughts.thought_generator import CandidateThought
from rksc_tot.search.validation import Fault


class PathEnd(NamedTuple):
    """How a path ends. Only nodes whose paths end alike are merged.

    * ``over``: it gets no more thoughts. ``inside``: the thinking block is open. ``closed``: the last thought is the reply to
      ``Task.closing``.
    """

    over: bool
    inside: bool
    closed: bool = False

    @classmethod
    def of(cls, node: Node, found: AcceptedThought) -> PathEnd:
        """That of the path to a node."""
        return cls(found.over, node._open_block is not None, node.closing is not None)


class TreeBuilder:
    """Turns candidate thoughts into nodes of one tree.

    Parameters
    ----------
    task, problem, engine, tree, limits, answers
        Of the search.
    closer : Closer
        Says which paths need a closing.
    emit : callable
        Called with the kind and the fields of every event.
    sibling_merging : SiblingMerging, optional
        Merges similar siblings (ASKS). Without it, only equal texts and states are merged.
    """

    def __init__(
        self,
        task: Task,
        problem: Any,
        engine: Engine,
        tree: ReasoningTree,
        limits: Limits,
        answers: Answers,
        closer: Closer,
        emit: Callable[..., None],
        sibling_merging: SiblingMerging | None = None,
    ) -> None:
        self._task, self._problem, self._engine, self._tree = task, problem, engine, tree
        self._sibling_merging = sibling_merging
        self._limits, self._answers, self._closer, self._emit = limits, answers, closer, emit
        self._states: dict[tuple[Hashable, PathEnd], Node] = {}  # by key
        self._texts: dict[tuple[int, str, PathEnd], Node] = {}  # by parent and text
        self.works = False
        """Whether the task has judged at least one thought without failing."""
        self.fault: Fault | None = None
        """The first failure of the task on a thought, None if there was none."""
        self.rejections: Counter[str] = Counter()

    def build(self, candidates: Iterable[CandidateThought], merge: bool) -> list[Node]:
        """The new nodes, in the order of the candidates, without those that the budget cut off.

        Rejected and merged candidates are counted and reported as events.
        """
        waiting = deque(candidates)
        try:
            nodes: list[Node] = []
            while waiting:
                verdict, cut = self._judge(waiting[0], merge), waiting[0].cut
                node = self._place(waiting.popleft(), verdict)
                nodes += [] if node is None or cut else [node]
            return nodes
        finally:  # only left over if a callback raised
            self.discard(waiting)

    def discard(self, candidates: Iterable[CandidateThought]) -> None:
        """Release the handles of candidates that become no nodes."""
        for candidate in candidates:
            self._release(candidate.handle)

    def _judge(self, candidate: CandidateThought, merge: bool) -> tuple[AcceptedThought, Node | None] | str:
        """The accepted thought and the node to merge it into (None: a new node), or why the candidate is rejected."""
        if candidate.fault is not None:
            return candidate.fault
        if candidate.closing is not None:
            closed = self._closer.closed(candidate.path, candidate.text, candidate.finish, candidate.around)
            return AcceptedThought(closed[-1], closed, True, None), None
        task, problem, path = self._task, self._problem, candidate.path
        thought = candidate.parsed or parse_thought(
            task, problem, path, candidate.text, candidate.finish, candidate.around
        )
        found = thought if isinstance(thought, str) else follow_thought(task, problem, path, thought)
        if isinstance(found, str):
            return found
        found = self._closer.judge(found, candidate.finish)
        end = PathEnd(found.over, candidate.block.still_open is not None)
        into = self._texts.get((candidate.parent.id, found.thought.text, end))
        if into is None and merge and found.key is not None:
            try:
                with calling_user_code("comparing two state_keys"):
                    into = self._states.get((found.key, end))
            except UserCodeError as raised:
                return Fault(raised)
        return found, into

    def _place(self, candidate: CandidateThought, judged: tuple[AcceptedThought, Node | None] | str) -> Node | None:
        """Make a node of a candidate, merge it, or reject it. Returns the new node."""
        if isinstance(judged, Fault):
            self.fault = self.fault or judged
        elif candidate.fault is None and candidate.closing is None:
            self.works = True
        if isinstance(judged, str):
            self._reject(candidate, judged)
            return None
        found, into = judged
        if into is not None:
            self._release(candidate.handle)
            self._merge(candidate.parent, into, found.thought.text, candidate.count)
            return None
        if (
            found.thought.text.strip() != candidate.text.strip()
        ):  # the task changed the text: the path continues with its text
            self._release(candidate.handle)
            candidate = replace(
                candidate, text=found.thought.text, handle=None, tokens=(), logprobs=(), constrained_logprobs=()
            )
        plain = candidate.closing is None and found.thought.observation is None
        mergeable = plain and found.thought is not END and not found.ended
        merging = self._sibling_merging if mergeable else None
        if merging and (
            similar := merging.most_similar(
                candidate.parent, found.finished, candidate.block.still_open is not None, candidate.handle
            )
        ):
            into, sigma = similar
            merging.merge(
                found.path,
                f"{candidate.parent.branch}.{candidate.branch}",
                candidate.handle,
                into,
                len(candidate.tokens),
            )
            self._merge(candidate.parent, into, found.thought.text, candidate.count, sigma)
            return None
        try:
            candidate = replace(candidate, handle=self._handle(candidate, found.thought.observation))
        except ContextOverflow as error:
            self._reject(candidate, str(error))
            return None
        if not self._limits.admit_node():
            self._release(candidate.handle)
            return None
        node = self._add(candidate, found)
        if merging:
            merging.remember(node)
        self._emit(Added, node=node)
        self._merge(candidate.parent, node, node.text, candidate.count - 1)
        return node

    def _handle(self, candidate: CandidateThought, observation: str | None) -> Any:
        """The handle of the path with the candidate, after its thinking block if that is kept, and with the observation."""
        handle, block = candidate.handle, candidate.block
        if handle is None:
            before = candidate.parent._handle if block.before is None else block.before
            handle = continued(self._engine, before, block.prefix, candidate.text + candidate.ending)
        if observation is None:
            return handle
        try:
            longer = self._engine.extend(handle, text_on_path(candidate, observation))
        except ContextOverflow:
            if candidate.handle is None:
                self._release(handle)
            raise
        self._release(handle)
        return longer

    def _reject(self, candidate: CandidateThought, reason: str) -> None:
        self._release(candidate.handle)
        if candidate.closing is not None:
            self._closer.asked.add(candidate.parent.id)
        self._limits.ledger.rejected += candidate.count
        reason = str(reason)  # a plain str, as a Fault keeps its exception alive
        self.rejections[reason] += candidate.count
        for _ in range(candidate.count):
            self._emit(Rejected, parent=candidate.parent.id, text=candidate.text, reason=reason)

    def _add(self, candidate: CandidateThought, found: AcceptedThought) -> Node:
        parent = candidate.parent
        node = self._tree.add(
            parent,
            branch=f"{parent.branch}.{candidate.branch}" if parent.branch else candidate.branch,
            text=found.thought.text,
            tokens=candidate.tokens,
            logprobs=candidate.logprobs,
            constrained_logprobs=candidate.constrained_logprobs,
            finish=candidate.finish,
            finished=found.finished,
            around=SurroundingText.of(found.thought),
            count=1 if candidate.closing is None else parent.count,
            exact=parent.exact and candidate.exact,
            thinking_block=candidate.block.written,
        )
        node._open_block = candidate.block.still_open
        node._thought, node._handle = None if found.thought is END else found.thought, candidate.handle
        self._limits.ledger.observations += node.observation is not None
        if found.ended:
            self._closer.end(node)
        if node.closing is not None:
            self._closer.asked.add(parent.id)
        self._texts[parent.id, node.text, PathEnd.of(node, found)] = node
        self.register(node, found)
        return node

    def register(self, node: Node, found: AcceptedThought) -> None:
        """Remember the state key of a node, and a complete path."""
        if found.key is not None:
            self._states.setdefault((found.key, PathEnd.of(node, found)), node)
        if node.finished:
            self._answers.complete.append(node)

    def _merge(self, parent: Node, into: Node, text: str, times: int, sigma: float | None = None) -> None:
        into.count += times
        self._limits.ledger.merged += times
        for _ in range(times):
            self._emit(Merged, parent=parent.id, into=into.id, text=text, sigma=sigma)

    def _release(self, handle: Any) -> None:
        if handle is not None:
            self._engine.release(handle)
