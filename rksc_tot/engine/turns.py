"""Whose turn it is: fair shares of a pass for all searches, and no waiting behind a long prompt.

What a path lacks is *short* (a sampled token, a question) or *long* (a prompt). Short ones come first, whole. Long ones share
what is left of the pass, in chunks; while somebody else waits with something short, that is a quarter of the pass at most, so
that passes stay quick. Within both, the account for which the fewest rows have been computed comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.engine.base import Account
from rksc_tot.engine.jobs import Job

SHORT = 64  # rows
WHILE_OTHERS_WAIT = 4


class Turns:
    """Rows computed for each account, counted from when it came."""

    def __init__(self) -> None:
        self._served: dict[int, int] = {}  # by id of the account, while it has jobs
        self._room = 0  # rows left in the pass

    def book(self, account: Account, rows: int) -> None:
        """Note that so many rows are computed for an account."""
        self._served[id(account)] += rows
        self._room -= rows

    def deal(self, jobs: Sequence[Job], tree: PrefixTree, rows: int) -> Iterator[tuple[Job, Segment, int]]:
        """Every path that lacks something, in turn, with the most rows of a pass of ``rows`` that it may take.

        What was taken is to be booked before the next one is asked for.
        """
        self._welcome(jobs)
        self._room = rows
        short: list[tuple[Job, Segment]] = []
        long: list[tuple[Job, Segment]] = []
        for job in sorted((job for job in jobs if not job.ended), key=lambda job: self._served[id(job.account)]):
            for tip in job.tips():
                if job.lacks(tip):
                    missing = tree.missing(tip)
                    lacking = tip.end - missing[0][0].start - missing[0][1] if missing else 1
                    (short if lacking <= SHORT else long).append((job, tip))
        for job, tip in short:
            if self._room:
                yield job, tip, self._room
        if short:
            self._room = min(self._room, max(1, rows // WHILE_OTHERS_WAIT))
        for n, (job, tip) in enumerate(long):
            if self._room:
                yield job, tip, max(1, self._room // (len(long) - n))

    def _welcome(self, jobs: Sequence[Job]) -> None:
        """Accounts that come start level with the least served of those that are here; others are forgotten."""
        here = {id(job.account) for job in jobs}
        known = {key: rows for key, rows in self._served.items() if key in here}
        level = min(known.values(), default=0)
        self._served = {key: known.get(key, level) for key in here}
