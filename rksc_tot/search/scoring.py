"""Scores nodes with a verifier: the protocol of verifiers, the check of scores, and the writing of scores to nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from rksc_tot.core.budget import BudgetReached
from rksc_tot.core.errors import ConfigError, RkscTotError, VerifierError
from rksc_tot.core.events import Scored
from rksc_tot.core.plugins.user_code import UserCodeError, awaiting_user_code, finite, scalar, shown
from rksc_tot.core.task import Prompt, Question
from rksc_tot.core.task.task_settings import prompt_fault
from rksc_tot.core.tree import Node, ReasoningTree
from rksc_tot.engine.base import (
    Account,
    Completion,
    Engine,
    GenerateRequest,
    LabelRequest,
    LabelScores,
    Reader,
    Sampling,
)
from rksc_tot.search.approximate.approximations import Approximations
from rksc_tot.search.limits import Limits

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
NO_LABELS: Mapping[str, float] = {}
GREEDY = Sampling(temperature=0)


class Assessment(NamedTuple):
    """A score with its details.

    * ``score``: a finite number, higher is better; True is 1, False is 0.
    * ``labels``: label probabilities and, if the whole distribution was read, ``outside``, the probability of anything else.
    * ``layer``: after how many decoder layers the pass stopped; None if it ran all of them, or there was no pass.
    * ``exact``: False if the score was read from approximate KV.
    """

    score: float
    labels: Mapping[str, float] = NO_LABELS
    layer: int | None = None
    exact: bool = True


Score = float | Assessment | VerifierError | None


class Scorer(Protocol[S_contra]):
    """The methods of a verifier that a search calls; ``rksc_tot.verifiers.Verifier`` is the base of the built-in ones."""

    @property
    def name(self) -> str:
        """The name in messages and reports."""
        ...

    @property
    def free(self) -> bool:
        """Whether scores need no forward pass, so that they do not count as verifier calls."""
        ...

    @property
    def reads_states(self) -> bool:
        """Whether it reads the hidden states at the ends of thoughts, so that the engine must keep them."""
        ...

    def bounds(self, search: S_contra, node: Node) -> tuple[float, float] | None:
        """The lowest and highest score that a node can get, None if unknown."""
        ...

    def reader(self, engine: Engine) -> Reader:
        """The engine that answers its label requests: that of the search, or its own."""
        ...

    def labels_for(self, question: Question | None) -> tuple[str, ...]:
        """The labels that are read where the task asks ``question``; empty if scores do not come from label probabilities."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """The name and the settings that a calibration is bound to."""
        ...

    def release(self, search: S_contra) -> None:
        """Release what was kept for a search that ends."""
        ...

    async def score(self, search: S_contra, nodes: Sequence[Node]) -> Sequence[Score]:
        """One entry for each node: a number or an assessment; the error on this node; or None if a budget ran out."""
        ...


class Scoring(Generic[S]):
    """Calls the verifier and writes scores, labels and exit layers to nodes.

    Parameters
    ----------
    search, verifier
        The search as the verifier sees it, and the verifier.
    engine, tree, limits
        Of the search.
    approximations : Approximations
        Verify skip, layer exit, and the audits of both.
    emit : callable
        Gets every event, as kind and fields.
    """

    def __init__(
        self,
        search: S,
        verifier: Scorer[S],
        engine: Engine,
        tree: ReasoningTree,
        limits: Limits,
        approximations: Approximations,
        emit: Callable[..., None],
    ) -> None:
        self._search, self._verifier, self._engine, self._tree = search, verifier, engine, tree
        self._limits, self._emit = limits, emit
        self._reader = approximations.reader
        self._early_exit, self._audit = approximations.early_exit, approximations.compression_audit
        self._works = False

    async def score(self, nodes: Sequence[Node]) -> list[tuple[Node, VerifierError]]:
        """Score nodes. Returns the nodes on which the verifier failed, each with its error.

        Raises
        ------
        VerifierError
            If a score is not a finite number, or the verifier has failed on every node so far.
        BudgetReached
            If no verifier call is left.
        """
        rest, audited = self._skip(nodes)
        failed = []
        if rest:
            admitted = self._limits.admit_calls(rest, free=self._verifier.free)
            failed = self._write(admitted, await self._ask(admitted))
        if self._early_exit is not None:
            self._early_exit.review(audited)
            self._early_exit.review_rivals(nodes)
        return failed

    async def label(
        self, requests: Sequence[LabelRequest], nodes: Sequence[Node] | None, reader: Reader | None = None
    ) -> list[LabelScores | None]:
        """Answer label questions, see :meth:`Search.label`."""
        if reader is None or reader is getattr(
            self._reader, "of", None
        ):  # a reader that traces answers for the one it wraps
            reader = self._reader
        account = self._limits.account
        if reader is not self._engine:
            account = Account(account.ledger, deadline=account.deadline)
        early_exit = None if nodes is None or reader is not self._reader else self._early_exit
        if nodes is not None and early_exit is not None:
            requests = [early_exit.allow_exit(*pair) for pair in zip(nodes, requests, strict=True)]
        replies = list(await reader.label(requests, account))
        if early_exit is not None:
            for reply in replies:
                if reply is not None:
                    early_exit.audit_exit(reply)
        if self._audit and reader is self._engine:
            await self._audit.audit_scores(requests, replies)
        return replies

    async def write(
        self, nodes: Sequence[Node], texts: Sequence[Prompt], max_tokens: int, stop: Sequence[str]
    ) -> list[Completion | None]:
        """Write replies on scratch, see :meth:`Search.write`."""
        if any(fault := prompt_fault(text) for text in texts):
            raise ConfigError(f"the text of a verifier {fault}")
        requests = [
            GenerateRequest(
                node._handle, (0,), GREEDY, max_tokens, tuple(stop),
                keep_stop=False, skip_blank=True, suffix=text, verifying=True,
            )
            for node, text in zip(nodes, texts, strict=True)
        ]  # fmt: skip
        replies = await self._engine.generate(requests, self._limits.account)
        return [None if reply.finish == "budget" else reply for [reply] in replies]

    def close(self) -> None:
        """Have the verifier release what it kept for the search."""
        self._verifier.release(self._search)

    async def _ask(self, nodes: Sequence[Node]) -> list[Score]:
        """Call the verifier. Raises VerifierError if it raises any other error, or returns a wrong number of scores."""
        verifier, hint = self._verifier, "its score must be async and return an entry for each node"
        try:
            with awaiting_user_code(f"verifier {verifier.name!r}", RkscTotError, BudgetReached):
                scores = list(await verifier.score(self._search, nodes))
        except UserCodeError as raised:
            raise VerifierError(str(raised), hint=hint) from raised.error
        if len(scores) != len(nodes):
            given = f"{len(scores)} scores for {len(nodes)} nodes"
            raise VerifierError(f"verifier {verifier.name!r} returned {given}", hint=hint)
        return scores

    def _skip(self, nodes: Sequence[Node]) -> tuple[Sequence[Node], list[list[Node]]]:
        """Skip decisive groups of siblings. Returns the nodes to score, and which groups of them are scored for an audit."""
        if self._early_exit is None or self._verifier.free:
            return nodes, []
        bounds = partial(self._verifier.bounds, self._search)
        skipped, audited = self._early_exit.skip(nodes, bounds, self._siblings)
        for node, score in skipped:
            node.skipped = True
            self._set(node, Assessment(score))
        return [node for node in nodes if not node.skipped], audited

    def _siblings(self, node: Node) -> int:
        """The number of siblings of a node, itself included."""
        return 1 if node.parent is None else len(self._tree.children(self._tree[node.parent]))

    def _write(self, nodes: Sequence[Node], scores: Sequence[Score]) -> list[tuple[Node, VerifierError]]:
        failed: list[tuple[Node, VerifierError]] = []
        for node, score in zip(nodes, scores, strict=True):
            if isinstance(score, VerifierError):
                failed.append((node, score))
            elif score is None and (self._limits.short or self._limits.out_of_tokens):
                self._limits.cut_short()
            else:
                self._set(node, assessed(score, node, self._verifier.name))
                self._works = True
        if failed and not self._works:
            raise failed[0][1]
        return failed

    def _set(self, node: Node, assessment: Assessment) -> None:
        node.score = assessment.score
        if assessment.labels != node.labels:  # pydantic keeps a set of written fields, which takes memory
            node.labels = dict(assessment.labels)
        if assessment.exact != node.score_exact:
            node.score_exact = assessment.exact
        if assessment.layer is not None and assessment.layer < self._reader.layers:
            node.layer = assessment.layer
        if node._handle is not None:
            self._engine.rate(node._handle, assessment.score, node.depth)
        self._emit(
            Scored, node=node.id, score=node.score, layer=node.layer, skipped=node.skipped, exact=node.score_exact
        )


def assessed(score: Any, node: Node, verifier: str) -> Assessment:
    """The value of a verifier as an assessment with a float. Raises VerifierError if it is not a finite number."""
    given = score if isinstance(score, Assessment) else Assessment(score)
    value = scalar(given.score)
    number = float(value) if isinstance(value, bool) else finite(value)
    if number is not None:
        return given._replace(score=number)
    raise VerifierError(
        f"verifier {verifier!r} returned {shown(given.score)} for node {node.id} ({shown(node.text)})",
        hint="return a finite number, True or False; raise an error to prune the node",
    )
