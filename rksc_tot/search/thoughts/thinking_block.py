"""The thinking block of a thought, and what counts as thinking where a model writes markers in odd places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from rksc_tot.core.task.stop_rules import StopRule
from rksc_tot.core.tree import WrittenBlock
from rksc_tot.engine.base import Completion, ThinkingFormat


@dataclass(frozen=True, slots=True)
class OpenBlock:
    """A block that is open at the end of a node. ``left``: rest of its budget. ``before``: the path without the block."""

    left: int
    before: Any


@dataclass(frozen=True, slots=True)
class ThinkingBlock:
    """The block of one thought.

    * ``text``, ``tokens``, ``forced``: as in :class:`~rksc_tot.core.tree.WrittenBlock`.
    * ``before``: the path that the thought follows; None: its parent's. ``prefix``: tokens on the path before its text.
    * ``still_open``: the block, if it is open after the thought.
    * ``fault``: why the thought is rejected, None if it is not.
    """

    text: str = ""
    tokens: int = 0
    forced: bool = False
    before: Any = None
    prefix: tuple[int, ...] = ()
    still_open: OpenBlock | None = None
    fault: str | None = None

    @property
    def written(self) -> WrittenBlock | None:
        """The block as a node shows it; None if nothing was written in it."""
        if not (self.text or self.tokens or self.forced):
            return None
        return WrittenBlock(text=self.text, tokens=self.tokens, forced_close=self.forced)


NO_BLOCK = ThinkingBlock()
Reply = tuple[Completion, ThinkingBlock]


@dataclass(frozen=True)
class BlockEnd(StopRule):
    """The end of the closing marker, which stays in the text; or the end that another rule finds, if that is earlier."""

    closer: str
    rule: StopRule | None = None

    def find(self, text: str) -> tuple[int, int] | None:
        """The end of the marker."""
        at = text.find(self.closer)
        end = None if at < 0 else (at + len(self.closer),) * 2
        other = None if self.rule is None else self.rule.find(text)
        return min(end, other) if end and other else end or other


class SplitReply(NamedTuple):
    """A reply after its block. ``text``: what counts, ``thinking``: what does not, ``reopened``: whether it ends in a block."""

    text: str
    thinking: str
    reopened: bool


def split_reply(text: str, format: ThinkingFormat) -> SplitReply:
    """Tell thinking from the reply where a model writes markers after its block.

    What comes before a closing marker was thinking, and so is what comes after an opening marker. Where replies are messages of
    their own (channels), the closing marker ends the reply.
    """
    if format.header.text:
        text, before = text.partition(format.closer)[0], ""
    else:
        before, _, text = text.rpartition(format.closer)
    reply, opened, rest = text.partition(format.opener)
    return SplitReply(reply, before + rest, bool(opened))
