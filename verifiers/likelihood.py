"""Scores a thought by its likelihood under the model, which generation has already computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from rksc_tot.core.tree import Node
from rksc_tot.search import Search
from rksc_tot.search.scoring import Assessment, Score
from rksc_tot.verifiers.base import Verifier


class Likelihood(Verifier):
    """Likelihood: the geometric mean of the token probabilities, 0..1, of the last thought or of the whole path.

    It is exp(mean log-probability) at temperature 1. Proposed thoughts (``mode="propose"``) have no likelihood, as they were
    not sampled on their own path. The reply to a closing counts with the thought that it closes, so that a path does not rank
    higher because its answer was asked for.
    """

    name: str = "likelihood"
    free: ClassVar[bool] = True
    of: Literal["thought", "path"] = "thought"

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """Compute the scores from the log-probabilities of the nodes."""
        return [self._likelihood(search, node) for node in nodes]

    def _likelihood(self, search: Search, node: Node) -> Score:
        thoughts = search.tree.lineage(node)
        if self.of == "thought":
            thoughts = thoughts[-1 if node.closing is None else -2 :]
        logprobs = [logprob for thought in thoughts for logprob in thought.logprobs]
        if not logprobs and node.text:
            return self.failure(
                node, "a thought that was proposed, or changed by parse, has no likelihood", "use another verifier"
            )
        score = math.exp(sum(logprobs) / len(logprobs)) if logprobs else 1.0
        return Assessment(score, exact=all(thought.exact for thought in thoughts))
