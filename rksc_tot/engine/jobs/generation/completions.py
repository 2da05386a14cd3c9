"""The completions of a generation: finished texts, each at the end of a path in the prefix tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.engine.base import Completion, Finish
from rksc_tot.engine.jobs.generation.branches import BranchGroup
from rksc_tot.engine.tokenization.find_stops import leading_stops


class Completions:
    """Completions of one generation, each with a hold on its path in the prefix tree.

    Branches that wrote the same tokens and text share one completion.

    Attributes
    ----------
    states
        Hidden states ``[L, H]`` of the row that predicts the last token of a completion, by the segment that ends its path.
    """

    def __init__(self, tree: PrefixTree, base: Segment, keep: bool, skipped: Sequence[str]) -> None:
        """``base``: where the paths begin; ``keep``: whether they are kept; ``skipped``: stop strings cut from the start."""
        self._tree = tree
        self._base = base
        self._keep = keep
        self._skipped = skipped
        self._done: dict[object, Completion] = {}
        self.states: dict[Segment, Any] = {}

    def add(
        self,
        group: BranchGroup,
        text: str,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        finish: Finish,
        ending: str = "",
    ) -> None:
        """Make the completion of a branch group, or add its branches to an equal one. ``ending``: what follows the text."""
        begin = leading_stops(text, self._skipped)
        text, lead = text[begin:], text[:begin]
        made = Completion(
            text, tuple(tokens), tuple(logprobs), finish, tuple(group.branches), None, group.exact,
            () if group.matcher is None else constrained(logprobs, group.shares), lead, ending,
        )  # fmt: skip
        key = (text, made.tokens, finish)
        known = self._done.get(key)
        if self._keep:
            made = made._replace(handle=self._tree.walk(self._base, tokens))
            self.states[made.handle] = group.tip.states
            if known is None:
                self._tree.hold(made.handle)
        if known is not None:
            branches = tuple(sorted(known.branches + made.branches))
            made = known._replace(branches=branches, exact=known.exact and made.exact)
        self._done[key] = made

    def in_order(self) -> list[Completion]:
        """All completions, ordered by their first branch."""
        return sorted(self._done.values(), key=lambda completion: completion.branches[0])

    def clear(self) -> None:
        """Drop all completions."""
        for completion in self._done.values():
            if completion.handle is not None:
                self._tree.drop(completion.handle)
        self._done = {}


def constrained(logprobs: Sequence[float], shares: Sequence[float]) -> tuple[float, ...]:
    """Log-probabilities of tokens among those that a constraint allowed; tokens after the constrained text keep their own."""
    drawn = [logprob - share for logprob, share in zip(logprobs, shares, strict=False)]
    return (*drawn, *logprobs[len(drawn) :])
