"""LM vote: the *vote* prompt of Tree of Thoughts, Yao et al. 2023, https://arxiv.org/abs/2305.10601.

The paper samples votes. Here the score is the expected share of votes: the probability of the candidate's number.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from rksc_tot.core.errors import ContextOverflow
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import LabelRequest, LabelScores
from rksc_tot.search import Search
from rksc_tot.search.scoring import Assessment, Score
from rksc_tot.verifiers.base import Verifier, ask_labels
from rksc_tot.verifiers.language_model.asking import asked, common_ancestor, continuation

BALLOT = 9  # candidates a question: each number is one digit


class LMVote(Verifier):
    """LM vote: numbers the candidates and asks the model which is the most promising.

    The question follows the common path of the candidates. A score is the expected share of all votes, 0..1. More than nine
    candidates are split into ballots of similar size, each with votes in proportion to its size. Scores are comparable within
    one call only.
    """

    name: str = "lm_vote"
    instruction: str = "\nWhich of these continuations is the most promising?\n"
    prompt: str = "The best is number "
    longest: int = Field(400, ge=1, description="most characters of a candidate")

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """Ask all ballots at once. A ballot that does not fit the context is split into halves."""
        shares: dict[int, Score] = {}
        ballots = self._ballots(sorted(nodes, key=lambda node: node.id))
        while ballots:
            shares |= {ballot[0].id: 1 / len(nodes) for ballot in ballots if len(ballot) == 1}
            held = [ballot for ballot in ballots if len(ballot) > 1]
            replies = await ask_labels(search, [self._request(search, ballot) for ballot in held])
            ballots = []
            for ballot, reply in zip(held, replies, strict=True):
                if isinstance(reply, ContextOverflow):
                    search.warn(
                        "ballots in halves", f"verifier {self.name!r}: a ballot is split into halves, because {reply}"
                    )
                    ballots += [ballot[: len(ballot) // 2], ballot[len(ballot) // 2 :]]
                else:
                    shares |= self._count(ballot, reply, len(nodes))
        return [shares[node.id] for node in nodes]

    def _count(self, ballot: list[Node], reply: LabelScores | None, total: int) -> dict[int, Score]:
        if reply is None:
            return {node.id: None for node in ballot}
        shares: dict[int, Score] = {}
        for number, node in enumerate(ballot, start=1):
            share = reply.probabilities[str(number)]
            labels = {str(number): share, "outside": reply.outside or 0.0}
            shares[node.id] = Assessment(share * len(ballot) / total, labels, exact=reply.exact)
        return shares

    def _ballots(self, nodes: list[Node]) -> list[list[Node]]:
        count = -(-len(nodes) // BALLOT)
        return [nodes[len(nodes) * i // count : len(nodes) * (i + 1) // count] for i in range(count)]

    def _request(self, search: Search, ballot: list[Node]) -> LabelRequest:
        shared = common_ancestor(search, ballot)
        lines = [self._line(search, shared, number, node) for number, node in enumerate(ballot, start=1)]
        text = self.instruction + "".join(lines) + self.prompt
        return LabelRequest(shared._handle, asked(search, text), tuple(str(i + 1) for i in range(len(ballot))))

    def _line(self, search: Search, shared: Node, number: int, node: Node) -> str:
        """A candidate on one line."""
        return f"{number}: {continuation(search, shared, node, self.longest)}\n"
