"""The events of a search, in order. Every view is built from events alone."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from rksc_tot.core.tree import Node


class Event(BaseModel):
    """Base of all events."""

    model_config = ConfigDict(frozen=True)


class Added(Event):
    """A thought became a node."""

    kind: Literal["added"] = "added"
    node: Node


class Merged(Event):
    """A thought was merged into node ``into``, whose count was raised.

    It leads to the same state, repeats a sibling, or is similar to one (``sigma``, ASKS).
    """

    kind: Literal["merged"] = "merged"
    parent: int
    into: int
    text: str
    sigma: float | None = None


class Rejected(Event):
    """The task rejected a thought, or the thought was cut off before it ended."""

    kind: Literal["rejected"] = "rejected"
    parent: int
    text: str
    reason: str


class Scored(Event):
    """A node was scored.

    * ``layer``: after how many decoder layers the verifier's pass stopped, None if it ran all of them.
    * ``skipped``: True if the verifier was not asked; the score is then the confidence of the thought.
    * ``exact``: False if the score was read from approximate KV.
    """

    kind: Literal["scored"] = "scored"
    node: int
    score: float
    layer: int | None = None
    skipped: bool = False
    exact: bool = True


class Pruned(Event):
    """A node was pruned."""

    kind: Literal["pruned"] = "pruned"
    node: int
    reason: str


class Finished(Event):
    """A complete path was handed in as a candidate answer."""

    kind: Literal["finished"] = "finished"
    node: int
    answer: str


class BudgetHit(Event):
    """The search stopped because a budget was used up."""

    kind: Literal["budget"] = "budget"
    reason: str
