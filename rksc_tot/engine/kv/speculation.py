"""VeriCache: tokens are drafted on reduced paths and verified on the full ones, so that what comes out is exact.

Feng et al. 2026, https://arxiv.org/abs/2605.17613. Of the paper the abstract was at hand: draft some tens of tokens with
compressed KV, verify them in one pass with all of it, keep what agrees, let both go on from there.

::

    full path    h h h a a a a a a t ──────────► d d d d d d      one pass gives the logits after t and after every d
    draft copy   h h   a   a   a a   t d d d d d d ▲              drafted on compressed KV; dropped afterwards

A *twin* is a copy of a path's KV, taken from the full one and reduced by the compression policy. It hangs from an
origin of its own, so
no exact request ever meets it. Drafts use the branches' own random numbers. To verify, the drafted tokens go through the
model as any others of the path, and the generation draws as it always does: as long as it draws what was drafted, the next
logits are there already. So nothing has to be compared for the result to be right, and it is the same whatever was drafted.
While drafts are written the full path is not in use, and may be evicted or offloaded.
"""

from __future__ import annotations

import logging

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.core.errors import CacheError, CompressionError
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

    @property
    def horizon(self) -> int:
        """The most tokens of one draft."""
        return self.settings.horizon

    def copy(self, job: Job) -> list[Segment] | None:
        """Compressed copies of the paths to the job's tips without their last tokens, each pinned; None if there is no room."""
        copies: list[Segment] = []
        self.compressor.ledger = job.account.ledger.compression
        try:
            if not self._broken:
                copies.extend(self._copy_path(job, tip) for tip in job.tips)
                return copies
        except CompressionError as error:
            self._broken = True
            _log.warning("nothing is drafted any more: %s", " ".join(str(error).split()))
        except CacheError:
            pass
        for made in copies:
            self.tree.unpin(made)
        return None

    def forget(self) -> None:
        """Drop the copies that no draft uses."""
        for copy in list(self._shadow.children.values()):
            self.tree.discard(copy, 0)

    def _copy_path(self, job: Job, tip: Segment) -> Segment:
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
                    self.compressor.compress(segment, job.prompt_end, self.settings.share)
        except CacheError:
            self.tree.unpin(at)
            raise
        return at

    def _copy(self, job: Job, tip: Segment, twin: Segment, tokens: range) -> None:
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
