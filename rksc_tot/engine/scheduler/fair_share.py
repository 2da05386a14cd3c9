"""The order in which paths get rows of a pass: fair shares for all searches, and no waiting behind a long prompt.

The missing part of a path is *short* (a sampled token, a question) or *long* (a prompt). The account with the fewest computed
rows comes first; of accounts with equally many, those with a short part. Short parts are computed whole. Long parts share the
rest of the pass in chunks. While short parts wait, long ones get a quarter of the pass at most, so that passes stay quick.
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
"""What must be computed before a path is resident, as :meth:`~rksc_tot.cache.prefix_tree.PrefixTree.missing` gives it."""


class Turn(NamedTuple):
    """A path that may take rows of a pass.

    Attributes
    ----------
    job, tip
        Which path it is, and for which job.
    rows
        The most rows it may take.
    missing
        What must be computed of the path.
    """

    job: Job
    tip: Segment
    rows: int
    missing: Missing


class FairShare:
    """Rows computed for each account.

    A new account starts level with the least-served active one. No account is more than one pass behind the most-served one, so
    an account that asks for little saves up no claim.
    """

    def __init__(self) -> None:
        self._served: dict[int, int] = {}  # by id of the account
        self._accounts: list[Account] = []  # kept alive, so that no id is given to another account
        self._room = 0  # rows left in the pass

    def book(self, account: Account, rows: int) -> None:
        """Note that so many rows are computed for an account."""
        self._served[id(account)] += rows
        self._room -= rows

    def deal(self, jobs: Sequence[Job], tree: PrefixTree, rows: int) -> Iterator[Turn]:
        """Every path that lacks something, in turn. ``rows``: those of the pass.

        The caller books the rows of a turn before it asks for the next one.
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
                    missing = tree.residency.missing(tip, job.exact)  # earlier turns have changed it
                yield Turn(job, tip, max(1, room // long) if is_long else room, missing)
            if is_long:
                long, for_long = long - 1, for_long - (before - self._room)

    def _wanted(self, jobs: Sequence[Job], tree: PrefixTree) -> Iterator[tuple[int, bool, int, Job, Segment, Missing]]:
        """Rows computed for its account so far, whether it is long, a number, and the path."""
        numbers = count()
        for job in jobs:
            served = self._served[id(job.account)]
            for tip in () if job.ended else job.wanted():
                if job.lacks(tip):
                    missing = tree.residency.missing(tip, job.exact)
                    lacking = tip.end - missing[0][0].start - missing[0][1] if missing else 1
                    yield served, lacking > SHORT, next(numbers), job, tip, missing

    def _level(self, jobs: Sequence[Job], rows: int) -> None:
        """Level the accounts of these jobs, and forget all others."""
        here = {id(job.account): job.account for job in jobs}
        known = [self._served[key] for key in here if key in self._served]
        least, most = min(known, default=0), max(known, default=0)
        self._served = {key: max(most - rows, self._served.get(key, least)) for key in here}
        self._accounts = list(here.values())
