"""Which rows of an arena or a store are free: a sorted list of runs, with neighbouring runs merged."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from rksc_tot.core.errors import CacheError


class FreeRows:
    """Hands out runs of the rows 0..rows-1.

    The lowest run that is long enough is taken. Where there is none, several shorter runs are taken, so every free row can
    be allocated.

    Attributes
    ----------
    rows
        How many rows there are.
    free
        How many of them are free.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.free = rows
        self._runs = [range(rows)] if rows else []  # free runs in ascending order, with a gap between any two

    def grow(self, count: int) -> None:
        """Add ``count`` free rows at the end."""
        if count:
            self.rows += count
            self.give([range(self.rows - count, self.rows)])

    def trim(self) -> None:
        """Remove the free rows at the end."""
        if self._runs and self._runs[-1].stop == self.rows:
            last = self._runs.pop()
            self.rows, self.free = last.start, self.free - len(last)

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
        """Free rows that were taken."""
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
        """Raise CacheError unless free and taken runs are disjoint and cover all rows, and neighbouring free runs are merged."""
        runs = sorted([*self._runs, *taken], key=lambda run: (run.start, run.stop))
        starts, stops = [run.start for run in runs], [run.stop for run in runs]
        if [*starts, self.rows] != [0, *stops] or self.free != sum(map(len, self._runs)):
            raise CacheError("row accounting is broken: free and taken runs do not add up")
        if any(low.stop >= high.start for low, high in zip(self._runs, self._runs[1:], strict=False)):
            raise CacheError("neighbouring free runs are not merged")


def runs_of(rows: Iterable[int]) -> Iterator[range]:
    """Consecutive rows as runs, in the given order."""
    run = range(0)
    for row in rows:
        if run and row == run.stop:
            run = range(run.start, row + 1)
        else:
            if run:
                yield run
            run = range(row, row + 1)
    if run:
        yield run


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
    """The same rows in runs that cross no multiple of ``step``."""
    for run in runs:
        at = run.start
        while at < run.stop:
            stop = min(run.stop, (at // step + 1) * step)
            yield range(at, stop)
            at = stop
