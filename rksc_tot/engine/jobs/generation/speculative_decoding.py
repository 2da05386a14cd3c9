"""Speculative decoding of a generation: a draft is decoded from compressed KV, then its tokens are verified on the full KV."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rksc_tot.cache.prefix_tree import Segment
from rksc_tot.engine.base import Account
from rksc_tot.engine.jobs.generation.branches import BranchingJob
from rksc_tot.engine.jobs.generation.draft import DraftJob
from rksc_tot.engine.jobs.generation.verification import Verification
from rksc_tot.engine.jobs.job import DraftKV, Job

PAUSE = 16  # draws without a draft after a draft that found no room


class SpeculativeDecoding:
    """The drafts of one generation.

    Attributes
    ----------
    draft
        The running draft job. The generation is paused while it runs.
    verification
        The draft tokens under verification.
    """

    def __init__(self, job: BranchingJob) -> None:
        self._job = job
        self._not_before = 1  # draws before the next draft may begin
        self.draft: DraftJob | None = None
        self.verification: Verification | None = None

    def next(self, copies: DraftKV, jobs: Sequence[Job]) -> DraftJob | None:
        """Begin to verify a complete draft; else begin the next draft if one is due.

        ``jobs``: all running jobs of the engine. The new draft job runs, and the generation is paused.
        """
        job = self._job
        if self.draft is not None:
            if self.draft.ended:
                self._verify(self.draft)
            return None
        if job.ready():
            return None
        horizon = copies.horizon
        if self.verification is not None:
            if any(map(job.lacks, job.wanted())):
                return None  # passes have not computed all draft tokens
            horizon = min(horizon, max(1, 2 * self.verification.longest))
            self.stop_verification()
        if not self._is_time(jobs):
            return None
        made = copies.copy(job)
        if made is None:
            self.postpone()
            return None
        self.draft = DraftJob(job, made, horizon)
        self.draft.start()
        job.pause()
        for copy in made:
            job.tree.residency.unpin(copy)
        return self.draft

    def wanted(self) -> list[Segment]:
        """Segments that passes must compute: none while a draft is written, else the ends of drafts and tips before them."""
        if self.draft is not None:
            return []
        tips, verified = self._job.tips, self.verification
        if verified is None:
            return tips
        return list(dict.fromkeys([*verified.leaves, *(tip for tip in tips if tip in verified.path)]))

    def stop_verification(self) -> None:
        """Drop the draft tokens that are not verified yet."""
        if self.verification is not None:
            self.verification.close()
            self.verification = None
            for tip in self._job.tips:
                self._job.tree.join(tip)

    def postpone(self) -> None:
        """Drop the draft tokens for lack of room, and pause drafting."""
        self.stop_verification()
        self._not_before = self._job.step + PAUSE

    def close(self) -> None:
        """End the draft: the generation has ended."""
        self.stop_verification()
        if self.draft is not None and not self.draft.ended:
            self.draft.expire()

    def _is_time(self, jobs: Sequence[Job]) -> bool:
        """Whether a draft may begin: paths are resident except for their last tokens, all branches are sampled, and the
        order of sampling does not matter.
        """
        job = self._job
        if not job.running or job.step < self._not_before or any(group.tail for group in job.groups):
            return False
        if not _enough(job, jobs):
            return False
        missing = [(tip, lack) for tip in job.tips for lack in job.tree.residency.missing(tip, job.exact)]
        return all(segment is tip and first == len(tip.tokens) - 1 for tip, (segment, first) in missing)

    def _verify(self, draft: DraftJob) -> None:
        """Append the draft tokens to the path, one segment a token, so that a pass gives logits after each of them."""
        job, tree = self._job, self._job.tree
        groups = {branch: group for group in job.groups for branch in group.branches}
        made = Verification(tree, job.account.ledger.verified, max(group.tip.end for group in job.groups))
        for branches, tokens, ends in draft.drafted:
            group = groups[branches[0]]
            known = len(group.logprobs)
            at = group.tip
            made.path.add(at)
            for token in tokens[known : len(tokens) - ends]:
                at = tree.walk(at, (token,))
                made.path.add(at)
            tree.residency.pin(at)
            made.leaves.append(at)
            made.start = min(made.start, group.tip.end)
            made.unverified |= {branch: deque(tokens[known:]) for branch in branches}
        made.ledger.book_round(sum(map(len, made.unverified.values())))
        self.draft, self.verification = None, made


def _enough(job: Job, jobs: Sequence[Job]) -> bool:
    """Whether the token budget suffices for all jobs, so that the order of sampling cuts off no branch."""
    account: Account | None = job.account
    while account is not None:
        left = account.tokens_left
        if left is not None and sum(o.remaining_tokens for o in jobs if o.account.draws_on(account)) > left:
            return False
        account = account.run
    return True
