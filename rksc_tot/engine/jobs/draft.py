"""The job that drafts the next tokens of a generation on compressed KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rksc_tot.cache.prefix_tree import Segment
from rksc_tot.engine.base import Finish
from rksc_tot.engine.jobs.drafted_tokens import END, Drafted
from rksc_tot.engine.jobs.generation import BranchGroup, Generation
from rksc_tot.engine.jobs.job import ComputedRows, Job


class DraftJob(Generation):
    """What the branches of a generation would write next upon twins of their paths. It pays for no token and keeps nothing.

    ``twins``: of each twig's path without its last token, which is computed here for the draft alone.
    """

    def __init__(self, parent: Generation, twins: Sequence[Segment], horizon: int) -> None:
        Job.__init__(self, parent.tree, twins[0], parent.account, None)
        self.parent = parent
        self.keeps_states = False
        self.horizon, self.room = horizon, parent.room
        self.prompt = parent.prompt
        self.request = replace(parent.request, rivals=None, states=False)
        self.tokenizer, self.eos, self.streams = parent.tokenizer, parent.eos, parent.streams
        self.step = 0
        self.draft, self.ahead = None, None
        self.done = []
        self.drafted: list[Drafted] = []
        self.twins = list(twins)
        self.groups, self._going = [], []
        for group, twin in zip(parent.groups, twins, strict=True):
            self.tree.hold(twin)
            tip = self.tree.walk(twin, group.tip.tokens[-1:])
            self.tree.hold(tip)
            self.groups.append(BranchGroup(tip, group.branches, group.written.fork(), group.logprobs))

    def grant(self, wanted: int) -> int:
        """All: only what is drawn in earnest is paid for."""
        return wanted

    def full(self, group: BranchGroup) -> bool:
        """Whether a twig may not grow any more, or need not for now."""
        return self.step >= self.horizon or self.parent.full(group)

    @property
    def remaining_tokens(self) -> int:
        """None that anybody pays for."""
        return 0

    def book(self, computed: Sequence[ComputedRows], exact: bool) -> None:
        """Book rows of a draft, exact or not."""
        self.account.ledger.verified.rows += sum(part.rows for part in computed)

    def outgrow(self) -> None:
        """End without a word: what is not drafted is generated all the same."""
        self.expire()

    def fail(self, error: Exception) -> None:
        """A draft that cannot go on has ended."""
        self.expire()

    def close(self) -> None:
        """Let go of everything; of what was drafted upon the twins nothing is left."""
        self.leave()
        self.tree.drop(self.base)
        for twin in self.twins:
            self.tree.drop(twin)
            for child in list(twin.children.values()):
                self.tree.discard(child, child.start)

    def _finish(
        self,
        group: BranchGroup,
        branches: Sequence[int],
        finish: Finish,
        stop: tuple[int, int] | None = None,
        ending: float | None = None,
    ) -> None:
        written = group.written.tokens[self.parent.before :]
        if finish == "eos":
            written = [*written, END]
        self.drafted.append(Drafted(branches, written, finish in ("stop", "eos") or self.parent.full(group)))
