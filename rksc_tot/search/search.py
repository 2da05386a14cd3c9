"""What a strategy may do: grow the tree, score nodes, keep or prune them, and hand in answers, within a budget."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rksc_tot.core.budget import Budget, BudgetReached
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.events import Added, BudgetHit, Event, Finished, Pruned
from rksc_tot.core.ledger import Ledger
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.core.seeds import stream_key
from rksc_tot.core.task import Path, Task
from rksc_tot.core.tree import Node, ReasoningTree
from rksc_tot.engine.base import Account, CompressingEngine, Engine, LabelRequest, LabelScores, Sampling
from rksc_tot.policies.ranking import Key, ranked
from rksc_tot.search.answers import Answers, all_rejected, check_task_works, too_deep
from rksc_tot.search.approximate.active import Approximations
from rksc_tot.search.expansion import ThoughtGenerator, sampling_of
from rksc_tot.search.limits import Limits
from rksc_tot.search.scoring import Scorer, Scoring
from rksc_tot.search.task_calls import accept_root
from rksc_tot.search.tree_builder import TreeBuilder
from rksc_tot.search.validation import Fault

if TYPE_CHECKING:
    from rksc_tot.search.approximate.settings import RKSC

E = TypeVar("E", bound=Event)
_log = logging.getLogger("rksc_tot")


class Search:
    """One search on one problem.

    Parameters
    ----------
    task : Task
    problem : object
        In the task's own form, as ``task.validate`` returns it.
    engine : Engine
    verifier : Verifier
        Scores nodes.
    budget : Budget
        Never exceeded by one. Nodes that were cut short stay in the tree; the next call raises :class:`BudgetReached`.
    seed : int
        Names every random draw. A node's children depend on the seed, the problem and the node's ``branch`` only.
    on_event : callable, optional
        Called with each :class:`~rksc_tot.core.events.Event` as it happens. It may raise BudgetReached to stop the search.
    rksc : RKSC, optional
        What may be approximate: settings that :meth:`~rksc_tot.search.approximate.settings.RKSC.ready` has checked.
    run : Limits, optional
        Limits of the run of many searches that this search belongs to.
    sampling : Sampling, optional
        How thoughts are drawn, by default as the task has it.

    Raises
    ------
    TaskError
        If the task cannot give a root for the problem, or the problem has no stable ``str()``: it names the random streams.
    ContextOverflow
        If the prompt does not fit the model's context.
    """

    def __init__(
        self,
        task: Task,
        problem: Any,
        engine: Engine,
        verifier: Scorer[Search],
        budget: Budget | None = None,
        seed: int = 0,
        on_event: Callable[[Event], None] | None = None,
        rksc: RKSC | None = None,
        run: Limits | None = None,
        sampling: Sampling | None = None,
    ) -> None:
        self.task, self.problem, self.engine, self.verifier = task, problem, engine, verifier
        self.seed = seed
        self.tree = ReasoningTree()
        self.ledger = Ledger()
        self.limits = Limits(budget or Budget(), self.ledger, lambda reason: self._emit(BudgetHit, reason=reason), run)
        self._warned: set[str] = set()
        self.prompt, root_state = accept_root(task, problem)
        self._names = (seed, str(problem))
        self.rksc = rksc
        self._approximations = Approximations(
            rksc, task, problem, self.prompt, engine, self.account, self._names, self.rng, self.warn
        )
        self._on_event: Callable[[Event], None] | None = None
        self.generator = ThoughtGenerator(
            task, problem, engine, self.account, sampling or sampling_of(task, {}), self._names, self._approximations
        )
        self._answers = Answers(task, problem, self.tree)
        merging = self._approximations.sibling_merging
        self._tree_builder = TreeBuilder(
            task, problem, engine, self.tree, self.limits, self._answers, self._emit, merging
        )
        self._scoring = Scoring(self, verifier, engine, self.tree, self.limits, self._approximations, self._emit)
        root = self.tree.add()
        root._handle = engine.open(self.prompt, self.account)
        self._tree_builder.register(root, root_state)
        if on_event is not None:
            self.listen(on_event)

    def listen(self, on_event: Callable[[Event], None]) -> None:
        """Call ``on_event`` with every event from now on, the root's first."""
        self._on_event = on_event
        self._emit(Added, node=self.root)

    # -- the tree ----------------------------------------------------------------------------------------------------

    @property
    def root(self) -> Node:
        """The node without a thought."""
        return self.tree.root

    @property
    def rejections(self) -> Counter[str]:
        """How many thoughts were rejected, or ended a path without an answer, for each reason."""
        return self._tree_builder.rejections

    @property
    def fault(self) -> Fault | None:
        """How the task first failed, None if it never did."""
        return self._tree_builder.fault or self._answers.fault

    @property
    def max_depth(self) -> int:
        """Thoughts in the longest path."""
        return self.task.max_thoughts

    def path(self, node: Node) -> Path:
        """The thoughts from the root to a node."""
        return self.tree.path(node)

    def rng(self, *names: object) -> random.Random:
        """The random stream called by ``names``, private to this problem and seed."""
        return random.Random(stream_key(*self._names, *names))

    # -- growing -----------------------------------------------------------------------------------------------------

    async def expand(
        self,
        nodes: Sequence[Node],
        k: int | Sequence[int],
        *,
        temperature: float | None = None,
        round: int = 0,
        merge: bool = True,
    ) -> list[Node]:
        """Draw ``k`` thoughts after each node, all in one engine call; returns the new nodes.

        Children come in the order of ``nodes``, then of the branch that first wrote them. A thought that the task rejects is
        counted; one that repeats a sibling, or leads to a known state, raises the ``count`` of that node. A model that only
        ends its text makes a child without a text. Finished nodes and nodes at ``max_depth`` get no children.

        Parameters
        ----------
        nodes : sequence of Node
        k : int or sequence of int
            Thoughts to draw (``sample`` mode) or to take from one reply (``propose`` mode), for all nodes or for each.
        temperature : float, optional
            In place of the task's; 0 is greedy.
        round : int
            The same node and round give the same texts; another round gives fresh ones.
        merge : bool
            Whether equal states are merged (repeated siblings always are).

        Raises
        ------
        BudgetReached
            If nothing more may be drawn.
        """
        counts = [k] * len(nodes) if isinstance(k, int) else list(k)
        if len(counts) != len(nodes) or any(count < 1 for count in counts):
            raise ConfigError(f"expand needs a k of at least 1 for each of {len(nodes)} nodes, not {shown(k)}")
        for node in nodes:
            if node.pruned is not None:
                raise ConfigError(f"node {node.id} cannot be expanded: it was pruned ({node.pruned})")
        wanted = [
            (node, count)
            for node, count in zip(nodes, counts, strict=True)
            if not node.finished and node.depth < self.max_depth
        ]
        if not wanted:
            return []
        with self.ledger.phase("expand"):
            admitted = [(node, self.path(node), count) for node, count in self.limits.admit_draws(wanted)]
            drafts, cut = await self.generator.draft(admitted, temperature=temperature, round=round)
            if cut:
                self.limits.cut_short()
            children = self._tree_builder.build(drafts, merge)
            await self._approximations.audit(children)
            return children

    async def rehydrate(self, nodes: Sequence[Node]) -> None:
        """Recompute the KV that a compression policy dropped from paths, so that later draws and scores use all their tokens.

        Thoughts that were written from compressed KV keep ``exact=False``. Raises ConfigError if a node has no KV any more or
        the engine compresses none, and CacheError if there is no room.
        """
        if not isinstance(self.engine, CompressingEngine):
            raise ConfigError(f"{self.engine.name} reduces no KV", hint="there is nothing to rehydrate")
        for node in nodes:
            if node._handle is None:
                raise ConfigError(f"node {node.id} cannot be rehydrated: its KV was given back")
        await self.engine.rehydrate([node._handle for node in nodes], self.account)

    # -- scoring -----------------------------------------------------------------------------------------------------

    async def score(self, nodes: Iterable[Node]) -> None:
        """Have the verifier score all nodes that have no score yet, in one call; a node that it fails on is pruned.

        Raises VerifierError and BudgetReached, see :meth:`~rksc_tot.search.scoring.Scoring.score`.
        """
        asked = list({node.id: node for node in nodes if node.score is None and node.pruned is None}.values())
        if not asked:
            return
        with self.ledger.phase("score"):
            for node, error in await self._scoring.score(asked):
                self.warn("verifier", f"{error}; a node that cannot be scored is pruned")
                self.prune(node, str(error))

    async def label(
        self, requests: Sequence[LabelRequest], nodes: Sequence[Node] | None = None
    ) -> list[LabelScores | None]:
        """The engine's answers to label questions of a verifier; None where the time ran out.

        ``nodes``: the node each question is about. Given these, passes may stop at a layer where the calibration allows that.
        A seeded share of the answers from compressed KV is asked again on all of it (``ledger.scores``). Raises
        ContextOverflow if a path and its question do not fit the context.
        """
        return await self._scoring.label(requests, nodes)

    # -- choosing ----------------------------------------------------------------------------------------------------

    def rank(self, nodes: Iterable[Node], key: Key | None = None) -> list[Node]:
        """Nodes sorted best first, see :func:`~rksc_tot.policies.ranking.ranked`."""
        return ranked(nodes, key)

    def keep(self, nodes: Sequence[Node], b: int, key: Key | None = None) -> list[Node]:
        """The ``b`` best, best first; the others are pruned with their rank as the reason."""
        order = ranked((node for node in nodes if node.pruned is None), key)
        for rank, node in enumerate(order[b:], start=b + 1):
            self.prune(node, f"rank {rank} of {len(order)}, kept {b}")
        return order[:b]

    def prune(self, node: Node, reason: str) -> None:
        """Drop a node and give back its handle. A node is pruned once; the root keeps its handle."""
        if node.pruned is not None:
            return
        node.pruned = reason
        if node.parent is not None:
            self._give_back(node._handle)
            node._handle = None
        self._emit(Pruned, node=node.id, reason=reason)

    # -- answers -----------------------------------------------------------------------------------------------------

    def answer(self, node: Node) -> str | None:
        """The answer of a complete path; None, and the node pruned, if the task cannot read one."""
        answer = self._answers.answer(node)
        if answer is None and node.pruned is None:
            reason = str(self._answers.faults[node.id])
            self.rejections[reason] += node.count
            self.prune(node, reason)
        return answer

    def vote(self, node: Node) -> Hashable | None:
        """What the answer of a complete path counts as in a vote (``Task.normalise``); None as in :meth:`answer`."""
        return None if self.answer(node) is None else self._answers.vote(node)

    def finish(self, node: Node, value: float | None = None) -> None:
        """Hand in a complete path as a candidate answer.

        Candidates compare by ``value`` (votes, a path's total …; default: the score), then as in :meth:`rank`.
        """
        if not node.finished:
            raise ConfigError(f"node {node.id} cannot be handed in: the task does not call its path a solution")
        if node in self._answers or (answer := self.answer(node)) is None:
            return
        self._answers.hand_in(node, value)
        self._emit(Finished, node=node.id, answer=answer)

    @property
    def best(self) -> Node:
        """The best node so far.

        That is the best candidate handed in; failing that the best complete path that was not pruned; failing that the
        deepest node, one that was not pruned before one that was, the best-ranked of its depth.
        """
        return self._answers.best()

    # -- the rest ----------------------------------------------------------------------------------------------------

    @property
    def account(self) -> Account:
        """Who pays for engine calls made on behalf of this search."""
        return self.limits.account

    def conclude(self, stopped: str) -> str:
        """Why the search ended: a budget, else why it has no answer, else ``stopped``. Warns of what went wrong.

        Raises
        ------
        TaskError
            If the task failed on every thought it was shown, or on the answer of every complete path.
        """
        check_task_works([self._tree_builder, self._answers], self.warn)
        if self.rejections and len(self.tree) == 1 and self.limits.stopped is None:
            self.warn("rejections", all_rejected(self.rejections))
        if deepest := self._answers.deepest():
            self.rejections[too_deep(self.max_depth)] += deepest
        unanswered = not self.best.finished or self.answer(self.best) is None
        why_none = self._answers.why_none(self.rejections) if unanswered else None
        return self.limits.stopped or why_none or stopped

    def warn(self, topic: str, message: str) -> None:
        """Log a warning, the first on its topic in this search."""
        if topic not in self._warned:
            self._warned.add(topic)
            _log.warning(message)

    def close(self) -> None:
        """Give back every handle and report no more events. The tree stays."""
        self._on_event = None
        self._approximations.close()
        for node in self.tree:
            self._give_back(node._handle)
            node._handle = None

    def _give_back(self, handle: Any) -> None:
        if handle is not None:
            self.engine.release(handle)

    def _emit(self, kind: type[E], **fields: Any) -> None:
        if self._on_event is None:
            return
        self.limits.check_ended()
        try:
            self._on_event(kind(**fields))
        except BudgetReached as reached:
            self.limits.end(str(reached))
