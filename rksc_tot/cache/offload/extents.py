"""Which rows of a store are free: runs of them, as few as can be."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from rksc_tot.core.errors import CacheError


class Extents:
    """Hands out runs of the rows 0..rows-1; runs that meet again become one.

    The lowest run that is long enough is taken; where none is, several short ones are, so rows that are free can always be had.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.free = rows
        """How many rows are free."""
        self._runs = [range(rows)] if rows else []  # free, from low to high, a gap between any two

    def take(self, count: int) -> list[range]:
        """``count`` rows as runs, in the order in which they are to be filled.

        Raises
        ------
        CacheError
            If fewer are free.
        """
        if count > self.free:
            raise CacheError(f"{count} rows asked for, {self.free} of {self.rows} free")
        self.free -= count
        at = next((n for n, run in enumerate(self._runs) if len(run) >= count), 0)
        taken: list[range] = []
        while count:
            run = self._runs[at]
            part = run[:count]
            count -= len(part)
            taken.append(part)
            self._runs[at : at + 1] = [run[len(part) :]] if len(part) < len(run) else []
        return taken

    def give(self, runs: Iterable[range]) -> None:
        """Rows that were taken are free again."""
        for run in runs:
            self.free += len(run)
            at = bisect_left(self._runs, run.start, key=lambda free: free.start)
            low, high = at, at
            if at and self._runs[at - 1].stop == run.start:
                low, run = at - 1, range(self._runs[at - 1].start, run.stop)
            if at < len(self._runs) and self._runs[at].start == run.stop:
                high, run = at + 1, range(run.start, self._runs[at].stop)
            self._runs[low:high] = [run]

    def check_integrity(self, taken: Iterable[range]) -> None:
        """Raise CacheError unless free and taken runs are disjoint and make up all rows, and no two free ones meet."""
        runs = sorted([*self._runs, *taken], key=lambda run: (run.start, run.stop))
        starts, stops = [run.start for run in runs], [run.stop for run in runs]
        if [*starts, self.rows] != [0, *stops] or self.free != sum(map(len, self._runs)):
            raise CacheError("row accounting is broken: free and taken runs do not add up")
        if any(low.stop >= high.start for low, high in zip(self._runs, self._runs[1:], strict=False)):
            raise CacheError("free runs that meet are not one")


def cut(runs: Iterable[range], at: int) -> tuple[list[range], list[range]]:
    """The first ``at`` rows of ``runs``, and the rest."""
    head: list[range] = []
    tail: list[range] = []
    for run in runs:
        first, rest = run[:at], run[at:]
        at -= len(first)
        head += [first] if first else []
        tail += [rest] if rest else []
    return head, tail


def batches(runs: Iterable[range], step: int) -> Iterator[range]:
    """The same rows in runs none of which crosses a multiple of ``step``."""
    for run in runs:
        at = run.start
        while at < run.stop:
            stop = min(run.stop, (at // step + 1) * step)
            yield range(at, stop)
            at = stop
