"""What the searches of a calibration leave behind, and what a rule would have done with it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pydantic import PrivateAttr

from rksc_tot.core.tree import Node, ReasoningTree
from rksc_tot.engine.base import Account, Engine, LabelRequest, LabelScores, Reader
from rksc_tot.policies.early_exit.cgee import ExitRule, RivalStop, VerifySkip, confidence, exit_layer, likeliest
from rksc_tot.policies.ranking import rounded
from rksc_tot.search import Search
from rksc_tot.search.scoring import Score
from rksc_tot.verifiers.base import Verifier

Trace = tuple[tuple[float, ...], ...]


class TriedDecision(NamedTuple):
    """What a rule did with one example: which share of its work it saved, and whether the decision is another one."""

    saved: float
    wrong: bool


Trial = Callable[[Any, Any], TriedDecision | None]
"""(rule, example): None where the rule did not act."""


class Moment(NamedTuple):
    """While branches are written side by side, after as many tokens each: the best confidences, and what stopping would mean."""

    ended: float
    running: float
    verdict: TriedDecision


class SiblingGroup(NamedTuple):
    """The branches below one node: the confidence of each, its score by the verifier in full, and how they were written."""

    confidences: tuple[float, ...]
    scores: tuple[float, ...]
    moments: tuple[Moment, ...]


@dataclass
class Harvest:
    """Of one searched problem: a trace for every node asked about, the sibling groups, and how many answers fell outside."""

    labels: set[tuple[str, ...]] = field(default_factory=set)
    traces: list[Trace] = field(default_factory=list)
    groups: list[SiblingGroup] = field(default_factory=list)
    outside: list[bool] = field(default_factory=list)

    def one_of_each(self, rng: random.Random) -> Harvest:
        """One random node and one random group, so that what is tested is independent from problem to problem."""
        at = rng.randrange(len(self.traces)) if self.traces else 0
        picked = slice(at, at + 1)
        groups = [rng.choice(self.groups)] if self.groups else []
        return Harvest(self.labels, self.traces[picked], groups, self.outside[picked])


class TracingReader:
    """A reader that has ``of`` trace every label request through all layers, and records the traces."""

    def __init__(self, reader: Reader, harvest: Harvest) -> None:
        self.of = reader
        self._harvest = harvest

    @property
    def name(self) -> str:
        """As of the reader."""
        return self.of.name

    @property
    def numerics(self) -> Mapping[str, Any]:
        """As of the reader."""
        return self.of.numerics

    @property
    def layers(self) -> int:
        """As of the reader."""
        return self.of.layers

    async def label(self, requests: Sequence[LabelRequest], account: Account) -> Sequence[LabelScores | None]:
        """Label probabilities, read in full with a trace."""
        replies = await self.of.label([replace(request, trace=True) for request in requests], account)
        for request, reply in zip(requests, replies, strict=True):
            if reply is not None and reply.trace is not None:
                self._harvest.labels.add(request.labels)
                self._harvest.traces.append(reply.trace)
                self._harvest.outside.append((reply.outside or 0.0) > 0.5)
        return replies


class Traced(Verifier):
    """A verifier whose label requests are traced and recorded. Its scores are those of ``of``."""

    name: str = "traced"
    of: Verifier
    _harvest: Harvest = PrivateAttr(default_factory=Harvest)

    def reader(self, engine: Engine) -> Reader:
        """That of the verifier, with traces."""
        return TracingReader(self.of.reader(engine), self._harvest)

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """As of the verifier."""
        return await self.of.score(search, nodes)

    def release(self, search: Search) -> None:
        """As of the verifier."""
        self.of.release(search)

    def harvest(self, tree: ReasoningTree) -> Harvest:
        """Everything from the search that grew this tree."""
        self._harvest.groups = groups_of(tree)
        return self._harvest


def groups_of(tree: ReasoningTree) -> list[SiblingGroup]:
    """Siblings, two or more, that all have been scored, and drawn on their own path."""
    found = []
    for parent in tree:
        branches = [(child.logprobs, child.score) for child in tree.children(parent)]
        scored = [(logprobs, score) for logprobs, score in branches if score is not None and logprobs]
        if len(scored) == len(branches) > 1:
            logprobs, scores = zip(*scored, strict=True)
            found.append(SiblingGroup(tuple(map(confidence, logprobs)), scores, moments_of(logprobs, scores)))
    return found


def moments_of(logprobs: Sequence[Sequence[float]], scores: Sequence[float]) -> tuple[Moment, ...]:
    """Every moment at which some branches have ended and others still run, all of them a token a step."""
    lengths = [len(branch) for branch in logprobs]
    found = []
    for now in range(min(lengths), max(lengths)):
        ended = [n for n, length in enumerate(lengths) if length <= now]
        running = [n for n, length in enumerate(lengths) if length > now]
        verdict = TriedDecision(
            sum(lengths[n] - now for n in running) / sum(lengths),
            falls_short(max(scores[n] for n in ended), scores),
        )
        best = max(confidence(logprobs[n]) for n in ended)
        found.append(Moment(best, max(confidence(logprobs[n][:now]) for n in running), verdict))
    return tuple(found)


def try_exit(rule: ExitRule, trace: Trace) -> TriedDecision | None:
    """Stop at a layer: wrong if another label is the likeliest there than at the end."""
    layer = exit_layer(rule, trace)
    if layer is None:
        return None
    return TriedDecision(1 - layer / len(trace), likeliest(trace[layer - 1]) != likeliest(trace[-1]))


def try_skip(rule: VerifySkip, group: SiblingGroup) -> TriedDecision | None:
    """Do not verify: wrong if the most confident branch is not one of the best by the verifier."""
    if not rule.decisive(group.confidences):
        return None
    return TriedDecision(1.0, falls_short(group.scores[likeliest(group.confidences)], group.scores))


def try_rivals(rule: RivalStop, group: SiblingGroup) -> TriedDecision | None:
    """Stop writing: wrong if none of the best by the verifier had ended by then."""
    for moment in group.moments:
        if rule.decisive([moment.ended], [moment.running]):
            return moment.verdict
    return None


def falls_short(score: float, scores: Sequence[float]) -> bool:
    """Whether a score is below the best of a group, near ties apart."""
    return rounded(score) < rounded(max(scores))
