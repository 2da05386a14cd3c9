"""Free rows: no row is handed out twice, every free row can be allocated, and neighbouring free runs are merged."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.cache.free_rows import FreeRows, batches, cut, runs_of
from rksc_tot.core.errors import CacheError


@given(st.integers(0, 40), st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(0, 99)), max_size=60))
def test_runs_never_overlap_and_can_be_freed_in_parts(rows, operations):
    free_rows, taken = FreeRows(rows), []
    for take, count, which in operations:
        if take and count <= free_rows.free:
            before = free_rows.free
            got = free_rows.take(count)
            assert sum(map(len, got)) == count == before - free_rows.free
            assert all(got)
            taken.append(got)
        elif take:
            with pytest.raises(CacheError, match="asked for"):
                free_rows.take(count)
        elif taken:
            runs = taken.pop(which % len(taken))
            back, kept = cut(runs, count)
            assert sum(map(len, back)) == min(count, sum(map(len, runs)))
            assert [row for run in back + kept for row in run] == [row for run in runs for row in run]
            free_rows.give(back)
            taken.append(kept)
        free_rows.check_integrity(run for runs in taken for run in runs)


def test_the_lowest_run_that_is_long_enough_is_taken():
    free_rows = FreeRows(20)
    whole = free_rows.take(20)
    free_rows.give([range(2, 4), range(6, 10), range(12, 20)])
    assert free_rows.take(4) == [range(6, 10)]
    assert free_rows.take(1) == [range(2, 3)]
    free_rows.check_integrity([range(3), range(4, 12)])
    assert whole == [range(20)]


def test_several_short_runs_are_taken_where_no_run_is_long_enough():
    free_rows = FreeRows(10)
    free_rows.take(10)
    free_rows.give([range(1, 3), range(5, 8)])
    assert free_rows.take(4) == [range(1, 3), range(5, 7)]
    assert free_rows.free == 1


def test_integrity_notices_a_lost_row_and_one_with_two_owners():
    free_rows = FreeRows(6)
    runs = free_rows.take(4)
    with pytest.raises(CacheError, match="do not add up"):
        free_rows.check_integrity([range(3)])
    with pytest.raises(CacheError, match="do not add up"):
        free_rows.check_integrity([*runs, range(1)])


def test_added_rows_are_free_and_joined_to_the_last_run():
    free_rows = FreeRows(0)
    free_rows.grow(3)
    free_rows.take(2)
    free_rows.grow(0)
    free_rows.grow(2)
    assert free_rows.take(3) == [range(2, 5)]
    free_rows.check_integrity([range(5)])


@given(st.lists(st.integers(0, 30)))
def test_rows_as_runs_are_the_same_rows_in_order_and_no_run_could_be_longer(rows):
    runs = list(runs_of(rows))
    assert [row for run in runs for row in run] == rows
    assert all(low.stop != high.start for low, high in pairwise(runs))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), max_size=5), st.integers(1, 9))
def test_batches_are_the_same_rows_and_cross_no_boundary(runs, step):
    runs = [range(start, start + length) for start, length in runs]
    parts = list(batches(runs, step))
    assert [row for part in parts for row in part] == [row for run in runs for row in run]
    assert all(part and part[0] // step == part[-1] // step for part in parts)
