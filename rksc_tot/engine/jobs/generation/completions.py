"""The completions of a generation: texts that have ended, each on a path of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.engine.base import Completion, Finish
from rksc_tot.engine.jobs.generation.branches import BranchGroup
from rksc_tot.engine.tokenization.stops import leading_stops


class Completions:
    """Completions of one generation, each with a hold on its path in the prefix tree.

    Attributes
    ----------
    done
        The completions so far.
    states
        By the end of a completion's path: hidden states ``[L, H]`` of the row that predicts its last token.
    """

    def __init__(self, tree: PrefixTree, base: Segment, keep: bool, skipped: Sequence[str]) -> None:
        """``base``: where the paths begin; ``keep``: whether they are kept; ``skipped``: stop strings no text begins with."""
        self._tree = tree
        self._base = base
        self._keep = keep
        self._skipped = skipped
        self.done: list[Completion] = []
        self.states: dict[Segment, Any] = {}

    def add(
        self, group: BranchGroup, text: str, tokens: Sequence[int], logprobs: Sequence[float], finish: Finish
    ) -> None:
        """Make the completion of a branch group."""
        handle = None
        if self._keep:
            handle = self._tree.walk(self._base, tokens)
            self._tree.hold(handle)
            self.states[handle] = group.tip.states
        text = text[leading_stops(text, self._skipped) :]
        self.done.append(
            Completion(text, tuple(tokens), tuple(logprobs), finish, tuple(group.branches), handle, group.exact)
        )

    def merged(self) -> list[Completion]:
        """All completions, ordered by their first branch; branches that wrote the same share one."""
        merged: dict[object, Completion] = {}
        for completion in sorted(self.done, key=lambda c: c.branches[0]):
            key = (completion.text, completion.tokens, completion.finish)
            first = merged.setdefault(key, completion)
            if first is not completion:
                merged[key] = first._replace(branches=tuple(sorted(first.branches + completion.branches)))
                self._drop(completion)
        self.done = list(merged.values())
        return self.done

    def clear(self) -> None:
        """Drop all completions."""
        for completion in self.done:
            self._drop(completion)
        self.done = []

    def _drop(self, completion: Completion) -> None:
        if completion.handle is not None:
            self._tree.drop(completion.handle)
