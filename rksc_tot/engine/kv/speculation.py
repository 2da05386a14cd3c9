"""VeriCache: tokens are drafted upon reduced paths and verified upon the full ones, so that what comes out is exact.

Feng et al. 2026, https://arxiv.org/abs/2605.17613. Of the paper the abstract was at hand: draft some tens of tokens with
compressed KV, verify them in one pass with all of it, keep what agrees, let both go on from there.

::

    full path    h h h a a a a a a t ──────────► d d d d d d      one pass gives the logits after t and after every d
    twin         h h   a   a   a a   t d d d d d d ▲              drafted upon what a compression policy left; forgotten afterwards

A *twin* is a copy of a path's KV, taken from the full one and reduced by the compression policy. It hangs from an origin of its own, so
no exact request ever meets it. Drafts use the branches' own random numbers. To verify, the drafted tokens go through the
model as any others of the path, and the generation draws as it always does: as long as it draws what was drafted, the next
logits are there already. So nothing has to be compared for the result to be right, and it is the same whatever was drafted.
While drafts are written the full path is not in use, and may be evicted or offloaded.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.core.errors import CacheError, CompressionError
from rksc_tot.engine.base import Account
from rksc_tot.engine.jobs.draft import DraftJob
from rksc_tot.engine.jobs.drafted_tokens import Ahead, Drafted
from rksc_tot.engine.jobs.generation import Generation
from rksc_tot.engine.jobs.job import Job
from rksc_tot.engine.kv.compression import Compressor
from rksc_tot.policies.compression.lossless import Lossless

_log = logging.getLogger("rksc_tot")


class Drafter:
    """Has generations drafted and verified, in turn. ``token_bytes``: KV bytes of one token."""

    def __init__(
        self,
        settings: Lossless,
        compressor: Compressor,
        tree: PrefixTree,
        arena: Arena,
        token_bytes: int,
    ) -> None:
        self.token_bytes = token_bytes
        self.settings = settings
        self.compressor = compressor
        self.tree = tree
        self.arena = arena
        self._shadow = tree.private_root()
        self._broken = False  # whether the policy has failed

    def turn(self, jobs: Sequence[Job]) -> list[DraftJob]:
        """Put what has been drafted before the generations, and begin the next drafts, which are returned."""
        begun = []
        for job in jobs:
            if isinstance(job, Generation) and not isinstance(job, DraftJob) and not job.ended:
                if isinstance(job.draft, DraftJob) and job.draft.ended:
                    self._verify(job, job.draft.drafted)
                elif job.draft is None and not job.ready():
                    horizon = self.settings.horizon
                    if job.ahead is not None:
                        if any(map(job.lacks, job.wanted())):
                            continue  # passes have not got to all that was drafted
                        horizon = min(horizon, max(1, 2 * job.ahead.longest))
                        job.settle()
                    if self._may(job, jobs) and (draft := self._begin(job, horizon)):
                        begun.append(draft)
        return begun

    def forget(self) -> None:
        """Let go of the twins that nobody uses."""
        for twin in list(self._shadow.children.values()):
            self.tree.discard(twin, 0)

    def _may(self, job: Generation, jobs: Sequence[Job]) -> bool:
        """Whether it is time for a draft: passes have got to all of the paths but their last tokens, and the order in which
        branches draw is no matter.
        """
        if self._broken or not job.running or job.step < job.undrafted or not _enough(job, jobs):
            return False
        missing = [(tip, lack) for tip in job.tips() for lack in self.tree.missing(tip, job.exact)]
        return all(segment is tip and first == len(tip.tokens) - 1 for tip, (segment, first) in missing)

    def _begin(self, job: Generation, horizon: int) -> DraftJob | None:
        """A draft of the next tokens, running; None where there is no room for it."""
        twins: list[Segment] = []
        draft = None
        self.compressor.ledger = job.account.ledger.compression
        try:
            twins.extend(self._draft_copy(job, group.tip) for group in job.groups)
            draft = job.draft = DraftJob(job, twins, horizon)
            draft.start()
            job.pause()
        except CompressionError as error:
            self._broken = True
            _log.warning("nothing is drafted any more: %s", " ".join(str(error).split()))
        except CacheError:
            job.draft_later()
        for twin in twins:
            self.tree.unpin(twin)
        return draft

    def _verify(self, job: Generation, drafted: Sequence[Drafted]) -> None:
        """Put the drafted tokens on the path, each a segment of its own, so that logits are given at each."""
        job.draft = None
        groups = {branch: group for group in job.groups for branch in group.branches}
        ledger = job.account.ledger.verified
        ahead = Ahead(self.tree, ledger, max(group.tip.end for group in job.groups), [], set(), {})
        for branches, tokens, over in drafted:
            group = groups[branches[0]]
            known = len(group.logprobs)
            at = group.tip
            ahead.met.add(at)
            for token in tokens[known : len(tokens) - over]:
                at = self.tree.walk(at, (token,))
                ahead.met.add(at)
            self.tree.pin(at)
            ahead.leaves.append(at)
            ahead.start = min(ahead.start, group.tip.end)
            ahead.guesses |= {branch: deque(tokens[known:]) for branch in branches}
        ledger.drafted += sum(map(len, ahead.guesses.values()))
        ledger.rounds += 1
        job.ahead = ahead

    def _draft_copy(self, job: Generation, tip: Segment) -> Segment:
        """The twin of a path without its last token, pinned; what it lacks is copied from the path, which is resident.

        Raises
        ------
        CacheError
            If there is no room.
        """
        *above, last = tip.lineage()
        at = self._shadow
        for tokens in (*(segment.tokens for segment in above), last.tokens[:-1]):
            at = self.tree.walk(at, tokens)
        self.tree.pin(at)
        try:
            for segment, _ in self.tree.missing(at)[:1]:
                self.tree.part(segment, job.payer)
            for segment, first in self.tree.missing(at):
                for low in range(first, len(segment.tokens), self.compressor.chunk):
                    self._copy(job, tip, segment, range(low, min(low + self.compressor.chunk, len(segment.tokens))))
                    self.compressor.compress(segment, job.prompt, self.settings.share)
        except CacheError:
            self.tree.unpin(at)
            raise
        return at

    def _copy(self, job: Generation, tip: Segment, twin: Segment, tokens: range) -> None:
        """Give these tokens of a segment of a twin the KV they have on the path to ``tip``."""
        if (limit := job.account.kv_tokens(self.token_bytes)) is not None:
            self.tree.make_room_within(len(tokens), limit, job.account)
        self.tree.make_room(len(tokens))
        slots = self.tree.pool.allocate(len(tokens))
        self.tree.store(twin, slots, job.payer, tokens.start)
        first, stop = twin.start + tokens.start, twin.start + tokens.stop
        source = [slot for segment in tip.lineage() for slot in segment.read(first, stop)[0]]
        self.arena.reserve(self.tree.pool.extent)
        self.arena.copy(source, slots)


def _enough(job: Generation, jobs: Sequence[Job]) -> bool:
    """Whether no branch will be cut off because another one has drawn the last token that was to be had."""
    account: Account | None = job.account
    while account is not None:
        left = account.tokens_left
        if left is not None and sum(o.remaining_tokens for o in jobs if o.account.draws_on(account)) > left:
            return False
        account = account.run
    return True
