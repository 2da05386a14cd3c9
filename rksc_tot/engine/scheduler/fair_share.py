"""Which paths get how many rows of a pass: fair shares for all searches, without waits behind long prompts.

The missing part of a path is *short* (a sampled token, a question) or *long* (a prompt). The account with the fewest computed
rows comes first; among equals, an account with a short part. Short parts are never cut. Long parts share the rest of the pass in
chunks. While short parts wait, long parts get at most a quarter of the pass, so that passes stay short.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.engine.base import Account
from rksc_tot.engine.jobs.job import Job

SHORT = 64  # rows
WHILE_OTHERS_WAIT = 4


Missing = list[tuple[Segment, int]]
"""The missing part of a path: segments, each with its first missing token. See ``Residency.missing``."""


class Turn(NamedTuple):
    """A path that may take rows of a pass.

    Attributes
    ----------
    job, tip
        The job, and the segment that ends the path.
    rows
        Most rows that the path may take.
    missing
        The missing part of the path.
    """

    job: Job
    tip: Segment
    rows: int
    missing: Missing


class FairShare:
    """Rows computed for each account.

    A new account starts level with the least-served active one. An account's count is never more than
    one pass below the highest count, so that small requests do not build up priority.
    """

    def __init__(self) -> None:
        self._served: dict[int, int] = {}  # by id of the account
        self._accounts: list[Account] = []  # kept alive, so that ids stay unique
        self._room = 0  # rows left in the pass

    def book(self, account: Account, rows: int) -> None:
        """Count rows as computed for an account."""
        self._served[id(account)] += rows
        self._room -= rows

    def deal(self, jobs: Sequence[Job], tree: PrefixTree, rows: int) -> Iterator[Turn]:
        """All paths with missing tokens, in the order of fair share. ``rows``: size of the pass.

        The caller books the rows of a turn before it takes the next turn.
        """
        self._level(jobs, rows)
        self._room = rows
        wanted = sorted(self._wanted(jobs, tree))
        seen = tree.residency.changes
        long = sum(is_long for _, is_long, *_ in wanted)
        for_long = rows if long == len(wanted) else max(1, rows // WHILE_OTHERS_WAIT)
        for _, is_long, _, job, tip, missing in wanted:
            before = self._room
            room = min(before, for_long) if is_long else before
            if room:
                if tree.residency.changes != seen or any(segment.kv.computed > first for segment, first in missing):
                    missing = tree.residency.missing(tip, job.exact)  # earlier turns may have changed it
                yield Turn(job, tip, max(1, room // long) if is_long else room, missing)
            if is_long:
                long, for_long = long - 1, for_long - (before - self._room)

    def _wanted(self, jobs: Sequence[Job], tree: PrefixTree) -> Iterator[tuple[int, bool, int, Job, Segment, Missing]]:
        """Entries to sort, one a path with missing tokens: rows served to the account, whether it is long, a number, the path."""
        numbers = count()
        for job in jobs:
            served = self._served[id(job.account)]
            for tip in () if job.ended else job.wanted():
                if job.lacks(tip):
                    missing = tree.residency.missing(tip, job.exact)
                    lacking = tip.end - missing[0][0].start - missing[0][1] if missing else 1
                    yield served, lacking > SHORT, next(numbers), job, tip, missing

    def _level(self, jobs: Sequence[Job], rows: int) -> None:
        """Level the counts of these jobs' accounts, and forget all other accounts."""
        here = {id(job.account): job.account for job in jobs}
        known = [self._served[key] for key in here if key in self._served]
        least, most = min(known, default=0), max(known, default=0)
        self._served = {key: max(most - rows, self._served.get(key, least)) for key in here}
        self._accounts = list(here.values())
