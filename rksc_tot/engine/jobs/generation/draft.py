"""The job that drafts the next tokens of a generation on compressed KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rksc_tot.cache.prefix_tree import Segment
from rksc_tot.engine.base import Finish
from rksc_tot.engine.jobs.generation.branches import BranchGroup, BranchingJob
from rksc_tot.engine.jobs.generation.verification import END, DraftTokens
from rksc_tot.engine.jobs.job import ComputedRows


class DraftJob(BranchingJob):
    """Drafts the next tokens of a generation's branches on compressed copies of their paths.

    The account does not pay for its tokens, and its KV is dropped with the job.

    Parameters
    ----------
    parent
        The generation.
    copies
        Ends of the copies, one for each branch group. A copy lacks the last token of the path; the draft job computes that
        token.
    horizon
        The most tokens of a branch.
    """

    pays = False  # the account pays only for tokens that the generation draws

    def __init__(self, parent: BranchingJob, copies: Sequence[Segment], horizon: int) -> None:
        request = replace(parent.request, rivals=None, states=False)
        super().__init__(
            parent.tree, copies[0], parent.account, parent.prompt_end, None, request, parent.tokenizer, parent.eos,
            parent.streams, parent.room,
        )  # fmt: skip
        self.most_steps = horizon
        self.drafted: list[DraftTokens] = []
        self._copies = list(copies)
        for group, copy in zip(parent.groups, copies, strict=True):
            self.tree.hold(copy)
            tip = self.tree.walk(copy, group.tip.tokens[-1:])
            self.tree.hold(tip)
            matcher = None if group.matcher is None else group.matcher.fork()
            self.groups.append(BranchGroup(tip, group.branches, group.written.fork(), group.logprobs, matcher=matcher))
            self.tips.append(tip)

    def finish(self, group: BranchGroup, finish: Finish, ending: float | None = None) -> None:
        """Record the draft tokens of a group."""
        tokens = [*group.sampled, END] if finish == "eos" else group.sampled
        ends = finish in ("stop", "eos") or len(group.logprobs) >= self.room
        self.drafted.append(DraftTokens(group.branches, tokens, ends))

    def stop(self, group: BranchGroup, start: int, end: int) -> None:
        """Finish the group; the generation finds the stop string itself."""
        self.finish(group, "stop")

    def complete(self, group: BranchGroup) -> None:
        """Finish the group; the generation closes its text."""
        self.finish(group, "stop")

    def book(self, computed: Sequence[ComputedRows], exact: bool) -> None:
        """Book all rows as draft rows."""
        self.account.ledger.verified.book_rows(sum(part.rows for part in computed))

    def outgrow(self) -> None:
        """End the draft. ``kv_short`` is not set: the generation goes on without a draft."""
        self.expire()

    def fail(self, error: Exception) -> None:
        """End the draft with the tokens it has; the generation does not fail."""
        self.expire()

    def close(self) -> None:
        """Release the copies; drop the KV computed after them."""
        self.leave()
        self.tree.drop(self.base)
        for copy in self._copies:
            self.tree.drop(copy)
            for child in list(copy.children.values()):
                self.tree.discard(child, child.start)
