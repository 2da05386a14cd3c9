"""What a verifier is, and which there are.

The short way to write one is the ``@verifier`` decorator on a function of (problem, path), see
:mod:`rksc_tot.verifiers.function`. A class is for verifiers that need the search: its engine, its tree, several nodes at
once. Name it in ``VERIFIERS``, or in the entry-point group ``rksc_tot.verifiers`` of your own package; the tests in
``tests/verifiers`` then run it through the contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import ConfigDict

from rksc_tot.core.errors import ContextOverflow, VerifierError
from rksc_tot.core.plugins.registry import Registry
from rksc_tot.core.plugins.settings import Settings
from rksc_tot.core.plugins.user_code import UserCodeError
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import LabelRequest, LabelScores
from rksc_tot.search import Search
from rksc_tot.search.scoring import Score


class Verifier(Settings):
    """Scores nodes; higher is better. Holds no state: one object serves many searches.

    ``name``: for messages and reports. ``free``: whether it asks nobody, so that its scores are no verifier calls.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)
    kind = "verifier"
    name: str = ""
    free: ClassVar[bool] = False

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """One entry for each node, in order.

        * a finite number: the score (True is 1, False 0);
        * an :class:`~rksc_tot.search.scoring.Assessment`: the score with label probabilities, exit layer and exactness, which
          the search writes to the node;
        * a VerifierError: why this node could not be scored; the node is pruned;
        * None: the time ran out before its turn.

        Raising ends the search.
        """
        raise NotImplementedError

    def bounds(self, search: Search, node: Node) -> tuple[float, float] | None:
        """The lowest and the highest score a node can get; None where that is not known, and the node is always asked about.

        Siblings that go unverified (:mod:`rksc_tot.policies.early_exit.cgee`) are scored between the two.
        """
        return None

    def failure(self, node: Node, what: object, hint: str = "") -> VerifierError:
        """The error that says what went wrong with a node; where user code raised, that is its cause."""
        error = VerifierError(f"verifier {self.name!r} failed on node {node.id}: {what}", hint=hint)
        error.__cause__ = what.error if isinstance(what, UserCodeError) else None
        return error


async def ask_labels(
    search: Search, requests: Sequence[LabelRequest], nodes: Sequence[Node] | None = None
) -> list[LabelScores | ContextOverflow | None]:
    """Label probabilities of all requests, None where the time ran out; ``nodes`` as in :meth:`Search.label`.

    Where one overflows the context, the others are asked again without it.
    """
    if not requests:
        return []
    try:
        return [*await search.label(requests, nodes)]
    except ContextOverflow as error:
        if len(requests) == 1:
            return [error]
    return [
        (await ask_labels(search, [request], None if nodes is None else [nodes[at]]))[0]
        for at, request in enumerate(requests)
    ]


def label_shares(reply: LabelScores) -> dict[str, float]:
    """What a node keeps of a reply: the probability of each label, and ``outside`` where that was read."""
    outside = {} if reply.outside is None else {"outside": reply.outside}
    return {**reply.probabilities, **outside}


VERIFIERS: Registry[Verifier] = Registry(
    kind="verifier",
    base=Verifier,
    group="rksc_tot.verifiers",
    built_in={
        "likelihood": "rksc_tot.verifiers.likelihood:Likelihood",
        "lm_value": "rksc_tot.verifiers.lm_value:LMValue",
        "lm_vote": "rksc_tot.verifiers.lm_vote:LMVote",
        "random": "rksc_tot.verifiers.random:RandomScores",
    },
    of_function="put @verifier above the function",
)
