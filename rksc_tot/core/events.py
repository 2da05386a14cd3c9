"""What happens in a search, in order. Every view is built on these and nothing else."""

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
    """A thought led to a state that is in the tree already, or repeats a sibling, or is like one (``sigma``, ASKS); ``into`` was
    counted up.
    """

    kind: Literal["merged"] = "merged"
    parent: int
    into: int
    text: str
    sigma: float | None = None


class Rejected(Event):
    """The task turned a thought away, or it was cut off before it ended."""

    kind: Literal["rejected"] = "rejected"
    parent: int
    text: str
    reason: str


class Scored(Event):
    """A verifier gave a node its score: after ``layer`` of its decoder layers (None: all); or it was ``skipped``.

    ``exact``: False if it was read upon approximate KV.
    """

    kind: Literal["scored"] = "scored"
    node: int
    score: float
    layer: int | None = None
    skipped: bool = False
    exact: bool = True


class Pruned(Event):
    """A node was dropped."""

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
