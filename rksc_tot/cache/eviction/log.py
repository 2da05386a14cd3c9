"""Counts evicted tokens for the ledgers, and logs each eviction."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rksc_tot.cache.segment import Segment
from rksc_tot.core.ledger import Ledger

_log = logging.getLogger("rksc_tot")


class EvictionLog:
    """The evictions of one tree.

    Attributes
    ----------
    tokens
        Tokens evicted to make room so far.
    """

    def __init__(self) -> None:
        self.tokens = 0

    def evicted(self, segment: Segment) -> None:
        """Log that a segment is evicted. Shown by ``rksc-tot --verbose``."""
        _log.debug("evicted %d tokens from position %d on", len(segment.kv.slots), segment.start)

    def made_room(self, segment: Segment) -> None:
        """Count the tokens of a segment that is evicted to make room."""
        self.tokens += len(segment.kv.slots)

    @contextmanager
    def booked_on(self, ledger: Ledger) -> Iterator[None]:
        """Book the tokens that are evicted to make room meanwhile on the ledger of a search."""
        before = self.tokens
        try:
            yield
        finally:
            ledger.evicted_tokens += self.tokens - before
