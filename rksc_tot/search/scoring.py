"""Scores: who gives them, what counts as one, and how nodes are ranked by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from rksc_tot.core.budget import BudgetReached
from rksc_tot.core.errors import RkscTotError, VerifierError
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, shown
from rksc_tot.core.tree import Node
from rksc_tot.search.validation import finite

if TYPE_CHECKING:
    from rksc_tot.search import Search

Key = Callable[[Node], float | None]


class Scorer(Protocol):
    """What a search needs of a verifier; ``rksc_tot.verifiers.Verifier`` is the base of those that come with it."""

    @property
    def name(self) -> str:
        """For messages and reports."""
        ...

    @property
    def free(self) -> bool:
        """Whether it asks nobody, so that its scores are no verifier calls."""
        ...

    def bounds(self, search: Search, node: Node) -> tuple[float, float] | None:
        """The lowest and the highest score a node can get, None where that is not known."""
        ...

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[float | VerifierError | None]:
        """One entry a node: a finite number, the error that kept this node from getting one, or None: out of time."""
        ...


async def scores_of(search: Search, nodes: Sequence[Node]) -> list[float | VerifierError | None]:
    """What the verifier of a search says of nodes.

    Raises
    ------
    VerifierError
        If it raises anything, or does not say one thing of each node.
    """
    verifier, hint = search.verifier, "its score must be async and return an entry for each node"
    try:
        with calling_user_code(f"verifier {verifier.name!r}", RkscTotError, BudgetReached):
            scores = list(await verifier.score(search, nodes))
    except UserCodeError as raised:
        raise VerifierError(str(raised), hint=hint) from raised.error
    if len(scores) != len(nodes):
        raise VerifierError(f"verifier {verifier.name!r} gave {len(scores)} scores for {len(nodes)} nodes", hint=hint)
    return scores


def usable(score: object, node: Node, verifier: str) -> float:
    """A score as a float; True is 1 and False 0.

    Raises
    ------
    VerifierError
        If it is not a finite number.
    """
    number = float(score) if isinstance(score, bool) else finite(score)
    if number is not None:
        return number
    raise VerifierError(
        f"verifier {verifier!r} gave {shown(score)} for node {node.id} ({shown(node.text)})",
        hint="return a finite number, True or False, or raise to have the node pruned",
    )


def ranked(nodes: Iterable[Node], key: Key | None = None) -> list[Node]:
    """Nodes sorted best first: by ``key`` (default: the score), then by likelihood, then lower id.

    Both numbers are rounded to four significant digits, so that near ties fall the same way where the last bits differ, as
    on another device; values on either side of a rounding boundary may still not. None ranks last.
    """
    by = key or _score
    return sorted(nodes, key=lambda node: (-rounded(by(node)), -rounded(node.likelihood), node.id))


def rounded(value: float | None) -> float:
    """A value as it is compared: to four significant digits, None below everything.

    Scores come from probabilities, which differ from device to device by about as much, relatively, as logits: 1e-5 in fp32.
    """
    return -math.inf if value is None else float(f"{value:.4g}")


def _score(node: Node) -> float | None:
    return node.score
