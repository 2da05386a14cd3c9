"""Slot numbers: no row has two owners, the limit is hard, and the arena is no larger than needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.core.errors import CacheError


@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=60))
def test_rows_never_overlap_and_the_arena_needs_no_more_than_were_taken_at_once(limit, operations):
    pool, taken, most = SlotPool(limit), [], 0
    for take, count in operations:
        if take and count <= pool.available:
            rows = pool.allocate(count)
            assert not set(rows) & set(taken)
            taken += rows
            most = max(most, len(taken))
        elif take:
            with pytest.raises(CacheError):
                pool.allocate(count)
        else:
            back, taken = taken[:count], taken[count:]
            pool.free(back)
        assert pool.used == len(taken) <= limit
        assert pool.extent == pool.peak == most
        assert max(taken, default=-1) < pool.extent
        pool.check_integrity(taken)


def test_a_run_of_free_rows_is_preferred_and_scattered_ones_are_used_before_the_arena_grows():
    pool = SlotPool(99)
    rows = pool.allocate(20)
    pool.free([*rows[1:3], *rows[5:9], rows[12]])
    assert pool.allocate(4) == rows[5:9]
    assert pool.allocate(3) == [*rows[1:3], rows[12]]
    assert pool.allocate(2) == [20, 21]
    assert pool.extent == 22


def test_an_empty_pool_is_refused():
    with pytest.raises(CacheError, match="holds nothing"):
        SlotPool(0)


def test_integrity_notices_a_lost_row():
    pool = SlotPool(4)
    rows = pool.allocate(3)
    with pytest.raises(CacheError, match="do not add up"):
        pool.check_integrity(rows[:2])
