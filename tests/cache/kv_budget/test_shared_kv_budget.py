import random
import threading

import pytest

from rksc_tot.cache.kv_budget.shared_kv_budget import SharedKVBudget
from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.core.errors import CacheError, ConfigError


def joined(budget, row_bytes, give_up=lambda rows: None, busy=lambda: False):
    pool = SlotPool(budget.most // row_bytes, row_bytes, budget)
    budget.join(pool, give_up, busy)
    return pool


@pytest.mark.parametrize("seed", range(20))
def test_pools_of_any_row_sizes_never_hold_more_than_the_budget_together(seed):
    rng = random.Random(seed)
    budget = SharedKVBudget(rng.randrange(200, 5000), engines=rng.choice([2, 3]))
    pools = [joined(budget, rng.randrange(1, 50)) for _ in range(budget.engines)]
    held = [[] for _ in pools]
    for _ in range(400):
        pool, rows = rng.choice(list(zip(pools, held, strict=True)))
        if rng.random() < 0.5 and rows:
            pool.free([rows.pop() for _ in range(rng.randrange(1, len(rows) + 1))])
        else:
            rows += pool.allocate(rng.randrange(pool.available + 1))
        assert budget.used <= budget.size
        assert all(other.used + other.available >= other.guaranteed for other in pools)
    assert budget.peak <= budget.size


def test_a_pool_can_take_its_floor_whatever_the_other_holds():
    budget = SharedKVBudget(1000)
    first, second = joined(budget, 7), joined(budget, 3)
    first.allocate(first.available)
    assert second.available == second.guaranteed == 250 // 3
    with pytest.raises(CacheError):
        second.allocate(second.available + 1)


def test_threads_never_take_more_than_the_budget():
    budget = SharedKVBudget(6400)
    pools = [joined(budget, 3), joined(budget, 5)]

    def work(pool):
        rng = random.Random(pool.row_bytes)
        for _ in range(300):
            rows = []
            try:
                rows = pool.allocate(rng.randrange(1, pool.limit))
            except CacheError:
                continue
            finally:
                pool.free(rows)

    threads = [threading.Thread(target=work, args=(pool,)) for pool in pools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < budget.peak <= budget.size
    assert budget.used == 0


def test_a_pool_without_room_has_the_other_evict_down_to_its_floor():
    budget = SharedKVBudget(1000)
    given = []

    def give_up(rows):
        given.append(rows)
        first.free(held[:rows])
        del held[:rows]

    first, second = joined(budget, 10, give_up), joined(budget, 10)
    held = first.allocate(60)
    second.allocate(30)
    assert second.available == 10
    assert second.ask(25)
    assert (given, second.available) == ([15], 25)
    assert second.ask(second.limit - second.used)
    assert first.used_bytes >= budget.floor
    assert not second.ask(second.limit)


def test_two_pools_never_wait_for_each_other():
    budget = SharedKVBudget(1000)
    answers = []
    first = joined(budget, 10, lambda rows: answers.append(first.ask(30)))
    second = joined(budget, 10)
    first.allocate(60)
    second.allocate(30)
    second.ask(20)
    assert answers == [False]


@pytest.mark.parametrize(("size", "engines"), [("64MiB", 1), (0, 2), ("lots", 2)])
def test_sizes_and_numbers_that_make_no_sense_are_refused(size, engines):
    with pytest.raises(ConfigError):
        SharedKVBudget(size, engines)


def test_one_engine_too_many_is_refused():
    budget = SharedKVBudget(1000)
    joined(budget, 1)
    second = joined(budget, 1)
    with pytest.raises(ConfigError, match="shared by 2 engines already"):
        joined(budget, 1)
    budget.leave(second)
    joined(budget, 1)
