"""VeriCache: tokens are drafted on compressed KV and verified on the full KV, so the output is exact.

Feng et al. 2026, https://arxiv.org/abs/2605.17613. Implemented from the abstract: draft some tens of tokens on compressed KV,
verify them in one pass on the full KV, keep the tokens that agree, and go on from there.

::

    full path    h h h a a a a a a t ──────────► d d d d d d      one pass gives the logits after t and after every d
    draft copy   h h   a   a   a a   t d d d d d d ▲              drafted on compressed KV; dropped afterwards

A *draft copy* is a copy of the full KV of a path, compressed by the policy. It has a private root, so no exact request reads it.
A draft uses the random numbers of the branches. For verification, a pass computes the draft tokens on the full path, and the
generation draws from the logits as always. While it draws the draft tokens, the next logits are already known. Drafts therefore
do not change the output. The full path is not in use while a draft is written, so its KV may be evicted or offloaded.
"""

from __future__ import annotations

import logging

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.cache.segment import Segment
from rksc_tot.core.errors import CacheError, CompressionError
from rksc_tot.engine.jobs.job import Job
from rksc_tot.engine.kv.compressor import Compressor
from rksc_tot.policies.compression.lossless import Lossless

_log = logging.getLogger("rksc_tot")


class DraftCopies:
    """The :class:`~rksc_tot.engine.jobs.job.DraftKV` of one engine. ``token_bytes``: KV bytes of one token."""

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
        self._origin = tree.private_root()
        self._failed = False  # whether the policy has failed

    @property
    def horizon(self) -> int:
        """The most tokens of one draft."""
        return self.settings.horizon

    def copy(self, job: Job) -> list[Segment] | None:
        """Compressed copies of the paths to the job's tips without their last tokens, each pinned; None if there is no room."""
        copies: list[Segment] = []
        self.compressor.book_on(job.account.ledger.compression)
        try:
            if not self._failed:
                copies.extend(self._copy_path(job, tip) for tip in job.tips)
                return copies
        except CompressionError as error:
            self._failed = True
            _log.warning("speculative decoding is off from now on: %s", " ".join(str(error).split()))
        except CacheError:  # no room: the generation goes on without a draft
            pass
        for made in copies:
            self.tree.residency.unpin(made)
        return None

    def forget(self) -> None:
        """Drop the copies that no draft uses."""
        for copy in list(self._origin.children.values()):
            self.tree.discard(copy, 0)

    def _copy_path(self, job: Job, tip: Segment) -> Segment:
        """The copy of a path without its last token, pinned. Missing KV is copied from the path, which is resident.

        Raises
        ------
        CacheError
            If there is no room.
        """
        residency = self.tree.residency
        *above, last = tip.lineage()
        at = self._origin
        for tokens in (*(segment.tokens for segment in above), last.tokens[:-1]):
            at = self.tree.walk(at, tokens)
        residency.pin(at)
        try:
            for segment, _ in residency.missing(at)[:1]:
                self.tree.split_by_payer(segment, job.payer)
            for segment, first in residency.missing(at):
                for low in range(first, len(segment.tokens), self.compressor.chunk):
                    self._copy(job, tip, segment, range(low, min(low + self.compressor.chunk, len(segment.tokens))))
                    self.compressor.compress(residency, segment, job.prompt_end, self.settings.share)
        except CacheError:
            residency.unpin(at)
            raise
        return at

    def _copy(self, job: Job, tip: Segment, copy: Segment, tokens: range) -> None:
        """Copy the KV of these tokens from the path to ``tip``."""
        residency = self.tree.residency
        slots = self.tree.room.allocate(len(tokens), job.account, job.account.kv_tokens(self.token_bytes))
        residency.store(copy, slots, job.payer, tokens.start)
        first, stop = copy.start + tokens.start, copy.start + tokens.stop
        source = [slot for segment in tip.lineage() for slot in segment.read(first, stop)[0]]
        self.arena.reserve(residency.pool.extent)
        self.arena.copy(source, slots)
