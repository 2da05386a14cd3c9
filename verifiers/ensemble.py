"""Ensembles: one score from those of several verifiers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rksc_tot.core.budget import BudgetReached
from rksc_tot.core.errors import ConfigError, VerifierError
from rksc_tot.core.plugins.one_line import read_plug_in
from rksc_tot.core.plugins.user_code import UserCodeError, awaiting_user_code, shown
from rksc_tot.core.task import Task
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import Engine
from rksc_tot.search import Search
from rksc_tot.search.scoring import Assessment, Score, assessed
from rksc_tot.verifiers.base import Verifier
from rksc_tot.verifiers.registry import VERIFIERS

Bounds = tuple[float, float]


class Ensemble(Verifier):
    """Ensemble: the mean, the least or the product of several verifiers' scores, or a logistic regression on them.

    ``node.labels`` gets the score of each member.

    Parameters
    ----------
    members : sequence
        Verifiers of any kind, names with settings such as ``likelihood:of=path``, or dicts such as
        ``{"name": "likelihood", "of": "path"}``; in one string with ``+`` between them.
    combine : {"mean", "min", "product", "learned"}
        ``learned``: the probability 1 / (1 + exp(-x)), where x is ``bias`` plus the weighted sum of the scores;
        :meth:`fitted` learns both.
    weights : sequence of float
        One for each member, for ``mean`` (from 0 on; default: equal) and ``learned``.
    bias : float
        For ``learned``.
    scale : bool
        Whether the score of a member with known bounds is mapped to 0..1 first.
    on_failure : {"prune", "drop"}
        If a member cannot score a node: the node is pruned, or the other members score it and a warning says so.
    """

    name: str = "ensemble"
    members: tuple[Verifier, ...] = Field(
        ("lm_value", "likelihood"), validate_default=True, min_length=1, max_length=12
    )
    combine: Literal["mean", "min", "product", "learned"] = "mean"
    weights: tuple[float, ...] = ()
    bias: float = 0.0
    scale: bool = True
    on_failure: Literal["prune", "drop"] = "prune"

    @field_validator("members", mode="before")
    @classmethod
    def _made(cls, given: object) -> object:
        given = given.split("+") if isinstance(given, str) else given
        many = isinstance(given, Sequence) and not isinstance(given, bytes)
        return tuple(_member(each) for each in given) if many else given  # type: ignore[attr-defined]

    @model_validator(mode="after")
    def _fits(self) -> Ensemble:
        if self.combine in ("min", "product") and self.weights:
            raise ConfigError(f"an ensemble by {self.combine} has no weights", hint="leave them out, or use mean")
        needed = len(self.members) if self.weights or self.combine == "learned" else 0
        if len(self.weights) != needed:
            raise ConfigError(
                f"the ensemble has {len(self.weights)} weights for {len(self.members)} members",
                hint="give one for each member",
            )
        if self.combine == "mean" and self.weights and not (min(self.weights) >= 0 and sum(self.weights) > 0):
            raise ConfigError(
                f"the weights {list(self.weights)} give no mean", hint="give weights from 0 on, not all 0"
            )
        if self.combine == "learned" and self.on_failure == "drop":
            raise ConfigError("learned weights need the scores of all members", hint="use on_failure='prune'")
        return self

    @property
    def free(self) -> bool:  # type: ignore[override]
        """Whether all members are free."""
        return all(member.free for member in self.members)

    @property
    def reads_states(self) -> bool:  # type: ignore[override]
        """Whether one of the members reads hidden states."""
        return any(member.reads_states for member in self.members)

    def release(self, search: Search) -> None:
        """Release what the members kept."""
        for member in self.members:
            member.release(search)

    def check(self, engine: Engine, task: Task) -> None:
        """Check that all members fit model and task."""
        for member in self.members:
            member.check(engine, task)

    def bounds(self, search: Search, node: Node) -> Bounds | None:
        """The bounds of the members, combined; None if those of one are unknown."""
        found = [self._scaled_bounds(search, member, node) for member in self.members]
        known = [bounds for bounds in found if bounds is not None]
        if len(known) < len(found):
            return None
        ends = [self.combined(list(corner)) for corner in itertools.product(*known)]  # each way is monotonic in a score
        return min(ends), max(ends)

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """Ask the members one after the other, then combine."""
        return [self._one(search, *each) for each in zip(nodes, *await self._members(search, nodes), strict=True)]

    async def features(self, search: Search, nodes: Sequence[Node]) -> list[list[float] | None]:
        """The members' scores of each node, as :meth:`fitted` takes them; None for a node that a member could not score."""
        rows = zip(nodes, *await self._members(search, nodes), strict=True)
        found: list[list[float] | None] = []
        for node, *scores in rows:
            values = [
                self._scaled(search, member, node, score)
                for member, score in zip(self.members, scores, strict=True)
                if isinstance(score, Assessment)
            ]
            found.append(values if len(values) == len(self.members) else None)
        return found

    def fitted(self, features: Sequence[Sequence[float]], right: Sequence[bool], ridge: float = 1.0) -> Ensemble:
        """A copy with learned weights: a logistic regression of ``right`` on the members' scores.

        Parameters
        ----------
        features
            Rows of :meth:`features`.
        right
            Whether the path of each row is right.
        ridge
            Penalty on the squared weights, of scores with a standard deviation of 1.

        Raises
        ------
        ConfigError
            If a row has another number of scores, or all paths are right or all wrong.
        """
        weights, bias = logistic_regression(features, right, len(self.members), ridge)
        values = {"combine": "learned", "weights": weights, "bias": bias, "on_failure": "prune"}
        return type(self)(**{**dict(self), **values})

    # -- members -----------------------------------------------------------------------------------------------------

    async def _members(self, search: Search, nodes: Sequence[Node]) -> list[list[Score]]:
        """The scores of each member: an assessment, an error or None for each node."""
        return [await self._ask(search, member, nodes) for member in self.members]

    async def _ask(self, search: Search, member: Verifier, nodes: Sequence[Node]) -> list[Score]:
        """The scores of a member. An error that would end the search is one of each node."""
        try:
            with awaiting_user_code("it", VerifierError, BudgetReached):
                scores = list(await member.score(search, nodes))
        except (UserCodeError, VerifierError) as error:
            return [member.failure(node, error) for node in nodes]
        if len(scores) != len(nodes):
            raise VerifierError(f"verifier {member.name!r} returned {len(scores)} scores for {len(nodes)} nodes")
        return [
            score if score is None or isinstance(score, VerifierError) else assessed(score, node, member.name)
            for node, score in zip(nodes, scores, strict=True)
        ]

    def _one(self, search: Search, node: Node, *scores: Score) -> Score:
        found: list[float] = []
        labels: dict[str, float] = {}
        exact, weights = True, list[float]()
        for at, (member, score) in enumerate(zip(self.members, scores, strict=True)):
            if score is None:
                return None
            if isinstance(score, VerifierError):
                if self.on_failure == "prune":
                    return score
                search.warn(f"ensemble without {member.name}", f"{score}; the other members of the ensemble score it")
                continue
            given = score if isinstance(score, Assessment) else Assessment(score)
            found.append(self._scaled(search, member, node, given))
            labels[member.name if member.name not in labels else f"{member.name} {at + 1}"] = given.score
            exact = exact and given.exact
            weights += self.weights[at : at + 1]
        if not found or (self.combine == "mean" and weights and sum(weights) <= 0):
            failed = next(score for score in scores if isinstance(score, VerifierError))
            return self.failure(node, f"no member could score it, the first because {failed.message}")
        try:
            score = self.combined(found, weights)
        except OverflowError:  # of math.fsum
            score = math.inf
        if not math.isfinite(score):
            members = ", ".join(f"{name} {value:g}" for name, value in labels.items())
            raise VerifierError(
                f"verifier {self.name!r}: the {self.combine} of {members} for node {node.id} is no finite number",
                hint="let the members return smaller numbers, such as 0 to 1",
            )
        return Assessment(score, labels, exact=exact)

    def _scaled_bounds(self, search: Search, member: Verifier, node: Node) -> Bounds | None:
        bounds = member.bounds(search, node)
        return bounds if bounds is None or not self.scale or bounds[0] >= bounds[1] else (0.0, 1.0)

    def _scaled(self, search: Search, member: Verifier, node: Node, score: Assessment) -> float:
        bounds = member.bounds(search, node) if self.scale else None
        if bounds is None or bounds[0] >= bounds[1]:
            return score.score
        return (score.score - bounds[0]) / (bounds[1] - bounds[0])

    def combined(self, scores: Sequence[float], weights: Sequence[float] = ()) -> float:
        """The score of the ensemble from those of its members, in their order. ``weights``: in place of its own."""
        weights = weights or self.weights or [1.0] * len(scores)
        if self.combine == "min":
            return min(scores)
        if self.combine == "product":
            return math.prod(scores)
        total = math.fsum(weight * score for weight, score in zip(weights, scores, strict=True))
        return total / math.fsum(weights) if self.combine == "mean" else sigmoid(self.bias + total)


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)), without overflow."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else 1 - 1 / (1 + math.exp(x))


def logistic_regression(
    features: Sequence[Sequence[float]], right: Sequence[bool], count: int, ridge: float
) -> tuple[tuple[float, ...], float]:
    """Weights and bias by Newton's method; see :meth:`Ensemble.fitted`."""
    import numpy as np

    if len(features) != len(right) or any(len(row) != count for row in features):
        raise ConfigError(f"each path needs {count} scores and a label", hint="give rows of features()")
    if len({*map(bool, right)}) < 2:
        raise ConfigError("there must be paths that are right, and paths that are wrong", hint="give more paths")
    x, y = np.asarray(features, dtype=float), np.asarray(right, dtype=float)
    mean, spread = x.mean(0), x.std(0)
    spread[spread == 0] = 1.0
    z = np.column_stack([(x - mean) / spread, np.ones(len(x))])  # [n, members + 1]
    penalty = np.diag([*[ridge] * count, 1e-6])
    w = np.zeros(count + 1)
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(z @ w, -30, 30)))
        step = np.linalg.solve(z.T @ (z * (p * (1 - p))[:, None]) + penalty, z.T @ (y - p) - penalty @ w)
        w += step
        if np.abs(step).max() < 1e-8:
            break
    weights = w[:-1] / spread
    return tuple(map(float, weights)), float(w[-1] - weights @ mean)


def _member(given: object) -> object:
    """A verifier from its name with settings, or from a table of settings."""
    if isinstance(given, str):
        return read_plug_in(VERIFIERS, "a member of the ensemble", given, "likelihood:of=path")
    if not isinstance(given, Mapping):
        return given
    settings: dict[str, Any] = {str(key): value for key, value in given.items()}
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(
            f"a member of the ensemble is {shown(dict(given))}", hint='give its name, as in {"name": "judge"}'
        )
    return VERIFIERS.make(name, **settings)
