"""``Search``: the methods that a strategy calls to expand, score, keep, prune and finish nodes within a budget."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.events import Added, BudgetHit, Event, Finished, Pruned
from rksc_tot.core.ledger import Ledger
from rksc_tot.core.seeds import stream_key
from rksc_tot.core.task import Path, Prompt, Task
from rksc_tot.core.tree import Node, ReasoningTree
from rksc_tot.engine.base import Account, Completion, CompressingEngine, Engine, LabelRequest, LabelScores, Sampling
from rksc_tot.policies.ranking import Key, ranked
from rksc_tot.search.answers import Answers, all_rejected, check_task_works, too_deep
from rksc_tot.search.approximate.approximations import Approximations
from rksc_tot.search.event_sender import EventSender
from rksc_tot.search.limits import Limits
from rksc_tot.search.scoring import Scorer, Scoring
from rksc_tot.search.task_calls import accept_root
from rksc_tot.search.thoughts.expander import LAST_CLOSINGS, Expander
from rksc_tot.search.thoughts.thought_generator import sampling_of
from rksc_tot.search.validation import Fault

if TYPE_CHECKING:
    from rksc_tot.engine.base import Reader
    from rksc_tot.search.approximate.rksc import RKSC

_log = logging.getLogger("rksc_tot")


class Search:
    """One search on one problem.

    Parameters
    ----------
    task : Task
    problem : object
        The validated problem, as ``task.validate`` returns it.
    engine : Engine
    verifier : Verifier
        Scores nodes.
    budget : Budget
        Hard limits, never exceeded. When one is reached, the current call returns what it has, and the next call raises
        :class:`BudgetReached`.
    seed : int
        Seed of every random stream. The children of a node depend on the seed, the problem and the node's ``branch`` only.
    on_event : callable, optional
        Called with each :class:`~rksc_tot.core.events.Event`. It may raise BudgetReached to stop the search.
    rksc : RKSC, optional
        Which approximations are on, as checked by :meth:`~rksc_tot.search.approximate.rksc.RKSC.ready`.
    run : Limits, optional
        Limits of the run of many searches that this search belongs to.
    sampling : Sampling, optional
        How thoughts are sampled; by default with the task's settings.

    Raises
    ------
    TaskError
        If the task fails at the root, or ``str(problem)`` is not stable: it names the random streams.
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
        self.limits = Limits(
            budget or Budget(), self.ledger, lambda reason: self._events.send(BudgetHit, reason=reason), run
        )
        self._events = EventSender(self.limits)
        self._warned: set[str] = set()
        self.prompt, root_state = accept_root(task, problem)
        self._names = (seed, str(problem))
        self.rksc = rksc
        self._approximations = Approximations(
            rksc, task, problem, self.prompt, engine, verifier.reader(engine), self.account, self._names, self.rng,
            self.warn,
        )  # fmt: skip
        self._answers = Answers(task, problem, self.tree)
        self.expander = Expander(
            task, problem, engine, self.tree, self.limits, self._answers, self._names,
            sampling or sampling_of(task, {}), verifier.reads_states, self._approximations, self._events.send,
        )  # fmt: skip
        self._scoring = Scoring(self, verifier, engine, self.tree, self.limits, self._approximations, self._events.send)
        root = self.tree.add()
        root._handle = self.expander.generator.open(self.prompt)
        self.expander.builder.register(root, root_state)
        if task.closing is not None:
            self.limits.reserve(task.closing_tokens)
        if on_event is not None:
            self.listen(on_event)

    def listen(self, on_event: Callable[[Event], None]) -> None:
        """Call ``on_event`` with every event from now on, beginning with the root's."""
        self._events.listen(on_event)
        self._events.send(Added, node=self.root)

    # -- the tree ----------------------------------------------------------------------------------------------------

    @property
    def root(self) -> Node:
        """The node without a thought."""
        return self.tree.root

    @property
    def rejections(self) -> Counter[str]:
        """Number of thoughts that were rejected or ended a path without an answer, by reason."""
        return self.expander.builder.rejections

    @property
    def fault(self) -> Fault | None:
        """The first failure of the task, None if there was none."""
        return self.expander.builder.fault or self._answers.fault

    def path(self, node: Node) -> Path:
        """The thoughts from the root to a node."""
        return self.tree.path(node)

    def rng(self, *names: object) -> random.Random:
        """The random stream of that name; it also depends on the problem and the seed."""
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
        """Generate ``k`` thoughts after each node in one engine call, and return the new nodes.

        Children are in the order of ``nodes``, then of the branch that first wrote them. Rejected thoughts are counted in
        :attr:`rejections`. A thought that repeats a sibling or leads to a known state is merged: it raises the ``count`` of that
        node. If the model only ends its text, the child has an empty text. Finished nodes and nodes at ``Task.max_thoughts`` get
        no children. With ``Task.closing``, an unfinished node at that depth, or whose path ended earlier without an answer, gets
        the reply to the closing as its only child, which is finished.

        Parameters
        ----------
        nodes : sequence of Node
        k : int or sequence of int
            Thoughts to sample (``sample`` mode) or most thoughts of one reply (``propose`` mode); one number, or one a node.
        temperature : float, optional
            Replaces the task's temperature; 0 is greedy.
        round : int
            The same node and round give the same texts; another round gives new ones.
        merge : bool
            Whether nodes with equal state keys are merged. Repeated siblings are always merged.

        Raises
        ------
        BudgetReached
            If no node or token is left in the budget.
        """
        return await self.expander.expand(nodes, k, temperature, round, merge)

    async def ask_for_answer(self) -> None:
        """If no path has an answer, end the search with the closing of the best live path (``Task.closing``).

        The tokens and the node for it are kept in reserve from the beginning, so that it fits the budget. If the reply has no
        answer, the next best path is closed, at most ``LAST_CLOSINGS`` in all, as far as the budget goes.
        """
        for attempt in range(LAST_CLOSINGS if self.task.closing is not None else 0):
            if self._answered:
                return
            for closed in await self.expander.close_best(again=attempt > 0):
                self.finish(closed)

    async def rehydrate(self, nodes: Sequence[Node]) -> None:
        """Recompute the KV that a compression policy dropped from paths, so that later calls use the full KV.

        Nodes that were generated from compressed KV keep ``exact=False``. Raises ConfigError if the engine has no compression
        policy or a handle was released, and CacheError if the KV budget is too small for the full KV.
        """
        if not isinstance(self.engine, CompressingEngine):
            raise ConfigError(f"{self.engine.name} has no compression policy", hint="remove the call of rehydrate")
        for node in nodes:
            if node._handle is None:
                raise ConfigError(f"node {node.id} cannot be rehydrated: its handle was released")
        await self.engine.rehydrate([node._handle for node in nodes], self.account)

    # -- scoring -----------------------------------------------------------------------------------------------------

    async def score(self, nodes: Iterable[Node]) -> None:
        """Score all nodes without a score in one call of the verifier, see :meth:`~rksc_tot.search.scoring.Scoring.score`.

        Nodes on which it fails are pruned.
        """
        asked = list({node.id: node for node in nodes if node.score is None and node.pruned is None}.values())
        if not asked:
            return
        with self.ledger.phase("score"):
            for node, error in await self._scoring.score(asked):
                self.warn("verifier", f"{error}; a node that cannot be scored is pruned")
                self.prune(node, str(error))

    async def label(
        self, requests: Sequence[LabelRequest], nodes: Sequence[Node] | None = None, reader: Reader | None = None
    ) -> list[LabelScores | None]:
        """Answer label questions of a verifier, one a request; None if the time ran out.

        ``nodes``: the node of each request. With it, passes may stop at a layer if the calibration allows it. A seeded share of
        the answers from compressed KV is audited on the full KV (``ledger.scores``). ``reader``: the engine of the handles, if it
        is not the verifier's. Raises ContextOverflow.
        """
        return await self._scoring.label(requests, nodes, reader)

    async def write(
        self, nodes: Sequence[Node], texts: Sequence[Prompt], *, max_tokens: int, stop: Sequence[str] = ()
    ) -> list[Completion | None]:
        """Write a verifier's reply to each text after its node, greedily; None if a budget cut it off. No KV of it stays.

        Its tokens count as sampled and as verifier tokens. Raises ContextOverflow if a path with its text does not fit.
        """
        return await self._scoring.write(nodes, texts, max_tokens, stop)

    # -- choosing ----------------------------------------------------------------------------------------------------

    def rank(self, nodes: Iterable[Node], key: Key | None = None) -> list[Node]:
        """Nodes sorted best first, see :func:`~rksc_tot.policies.ranking.ranked`."""
        return ranked(nodes, key)

    def keep(self, nodes: Sequence[Node], b: int, key: Key | None = None) -> list[Node]:
        """The ``b`` best nodes, best first. The others are pruned, with their rank as the reason."""
        order = ranked((node for node in nodes if node.pruned is None), key)
        for rank, node in enumerate(order[b:], start=b + 1):
            self.prune(node, f"rank {rank} of {len(order)}, kept {b}")
        return order[:b]

    def prune(self, node: Node, reason: str) -> None:
        """Prune a node and release its handle; the root keeps its handle. A pruned node is left alone."""
        if node.pruned is not None:
            return
        node.pruned = reason
        if node.parent is not None:
            self.expander.release(node)
        self._events.send(Pruned, node=node.id, reason=reason)

    # -- answers -----------------------------------------------------------------------------------------------------

    def answer(self, node: Node) -> str | None:
        """The answer of a complete path. If ``task.answer`` gives none, returns None and prunes the node."""
        answer = self._answers.answer(node)
        if answer is None and node.pruned is None:
            reason = str(self._answers.faults[node.id])
            self.rejections[reason] += node.count
            self.prune(node, reason)
        return answer

    def vote(self, node: Node) -> Hashable | None:
        """The answer of a complete path after ``task.normalise``, for votes; None as in :meth:`answer`."""
        return None if self.answer(node) is None else self._answers.vote(node)

    def finish(self, node: Node, value: float | None = None) -> None:
        """Hand in a complete path as a candidate answer.

        Candidates are ranked by ``value`` (votes or a path's total, for example; default: the score), then as in :meth:`rank`.
        """
        if not node.finished:
            raise ConfigError(f"node {node.id} cannot be finished: is_solution is False for its path")
        if node in self._answers or (answer := self.answer(node)) is None:
            return
        self._answers.hand_in(node, value)
        self._events.send(Finished, node=node.id, answer=answer)

    @property
    def best(self) -> Node:
        """The best candidate handed in. Without one, the best complete path that was not pruned; without one, the best-ranked
        of the deepest nodes, preferring nodes that were not pruned.
        """
        return self._answers.best()

    @property
    def _answered(self) -> bool:
        """Whether the best path has an answer."""
        return self.best.finished and self.answer(self.best) is not None

    # -- ending -------------------------------------------------------------------------------------------------------

    @property
    def account(self) -> Account:
        """The account of this search, for its engine calls."""
        return self.limits.account

    def conclude(self, stopped: str) -> str:
        """Why the search ended: a budget, else why it has no answer, else ``stopped``. Logs warnings about the task.

        Raises TaskError if the task failed on every thought, or on the answer of every complete path.
        """
        check_task_works([self.expander.builder, self._answers], self.warn)
        if self.rejections and len(self.tree) == 1 and self.limits.stopped is None:
            self.warn("rejections", all_rejected(self.rejections))
        if too_long := self._answers.count_at_depth_limit():
            self.rejections[too_deep(self.task.max_thoughts)] += too_long
        why_none = None if self._answered else self._answers.why_none(self.rejections)
        return self.limits.stopped or why_none or stopped

    def warn(self, topic: str, message: str) -> None:
        """Log a warning, once for each topic in this search."""
        if topic not in self._warned:
            self._warned.add(topic)
            _log.warning(message)

    def close(self) -> None:
        """Release every handle and stop reporting events. The tree stays readable."""
        self._events.listen(None)
        self.limits.release_reserve()
        self._approximations.close()
        self._scoring.close()
        for node in self.tree:
            self.expander.release(node)
