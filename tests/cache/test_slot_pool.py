"""Slot numbers: nobody gets a taken one, and the limit is hard."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.cache.slot_pool import SlotPool
from rksc_tot.core.errors import CacheError


@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=60))
def test_consecutive_allocations_never_overlap_and_never_exceed_the_limit(limit, operations):
    pool, taken = SlotPool(limit), []
    for take, count in operations:
        if take and count <= pool.available:
            rows = pool.allocate(count)
            assert not set(rows) & set(taken)
            assert max(rows) < limit
            taken += rows
        elif take:
            with pytest.raises(CacheError):
                pool.allocate(count)
        else:
            back, taken = taken[:count], taken[count:]
            pool.free(back)
        assert pool.used == len(taken) <= limit
        pool.check_integrity(taken)


def test_a_long_run_is_contiguous_while_untouched_rows_last():
    pool = SlotPool(40)
    singles = [pool.allocate(1)[0] for _ in range(9)]
    pool.free(singles[::2])
    assert pool.allocate(10) == list(range(9, 19))


def test_an_empty_pool_is_refused():
    with pytest.raises(CacheError, match="holds nothing"):
        SlotPool(0)


def test_integrity_notices_a_lost_row():
    pool = SlotPool(4)
    rows = pool.allocate(3)
    with pytest.raises(CacheError, match="do not add up"):
        pool.check_integrity(rows[:2])
