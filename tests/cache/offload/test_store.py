"""The offload store returns the stored bits or nothing; the limit is hard; faults are survived."""

import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.attention_stats import AttentionStats
from rksc_tot.cache.offload.disk import SpillFile
from rksc_tot.cache.offload.memory import Slabs
from rksc_tot.cache.offload.open_store import open_store
from rksc_tot.cache.offload.records import Records
from rksc_tot.cache.offload.store import OffloadStore
from rksc_tot.core.errors import CacheError
from tests.cache.offload.arenas import DTYPES, PLAIN, ROWS, UNLIKE, content, filled, same, size_of, wipe


class SmallSlabs(Slabs):
    SIZE = 700


class SmallSpillFile(SpillFile):
    BUFFER = 700


TIERS = [Slabs, SpillFile, SmallSlabs, SmallSpillFile]
both = pytest.mark.parametrize("named", ["cpu", "disk"])


@pytest.fixture
def warnings(caplog):
    with caplog.at_level(logging.WARNING, logger="rksc_tot"):
        yield lambda: [record.getMessage() for record in caplog.records]


# -- what comes back ---------------------------------------------------------------------------------------------------

OPERATION = st.tuples(
    st.sampled_from(["offload", "offload", "split", "drop", "restore", "prefetch"]),
    st.integers(0, 99),
    st.integers(0, 14),
)


@pytest.mark.parametrize("shapes", [PLAIN, UNLIKE], ids=["plain", "unlike"])
@pytest.mark.parametrize("make", TIERS)
@given(
    capacity=st.integers(1, 24),
    slack=st.integers(0, 50),
    operations=st.lists(OPERATION, max_size=30),
    order=st.randoms(),
)
def test_a_store_equals_a_dict_of_copies_with_lru_eviction(make, shapes, capacity, slack, operations, order):
    """Compared with a plain dict of cloned tensors, in the order of use."""
    arena = filled(shapes)
    record = Records.of(arena).size
    limit = capacity * record + slack % record
    store = OffloadStore("test", limit, make)
    model, seen = {}, set()  # entry: its bits

    def rows():
        return sum(entry.tokens for entry in model)

    for what, number, count in operations:
        if what == "offload":
            slots = list(range(number % 40, number % 40 + count)) if number % 2 else order.sample(range(ROWS), count)
            entry = store.offload(arena, slots)
            assert (entry is None) == (count > capacity)
            if entry is None:
                continue
            while rows() + count > capacity:
                del model[next(iter(model))]
            model[entry] = content(arena, slots)
            seen.add(entry)
        elif model:
            entry = list(model)[number % len(model)]
            if what == "split" and entry.tokens > 1:
                at, bits = 1 + count % (entry.tokens - 1), model.pop(entry)
                head, tail = entry.split(at)
                assert (head.tokens, tail.tokens) == (at, entry.tokens - at)
                model |= {head: [b[:, :at] for b in bits], tail: [b[:, at:] for b in bits]}
                seen |= {head, tail}
            elif what == "drop":
                entry.drop()
                del model[entry]
            elif what == "prefetch":
                store.prefetch(entry)
                model[entry] = model.pop(entry)
            elif what == "restore":
                model[entry] = model.pop(entry)
                slots = order.sample(range(ROWS), entry.tokens)
                others = [slot for slot in range(ROWS) if slot not in slots]
                untouched = content(arena, others)
                assert store.restore(entry, arena, slots)
                assert same(content(arena, slots), model[entry])
                assert same(content(arena, others), untouched)
        assert {entry for entry in seen if not entry.gone} == set(model)
        assert store.bytes == rows() * record <= limit
        store.check_integrity()
    for entry, bits in model.items():
        assert store.restore(entry, arena, range(entry.tokens))
        assert same(content(arena, range(entry.tokens)), bits)
    assert not any(store.restore(entry, arena, range(entry.tokens)) for entry in seen - set(model))
    assert (store.failed, store.refused_tokens) == (None, 0)
    store.close()


def test_the_check_finds_a_byte_over_the_limit_and_a_record_that_is_gone():
    arena = filled(PLAIN)
    store = OffloadStore("test", 10 * Records.of(arena).size, Slabs)
    record = store.offload(arena, [4, 2, 7])
    store.limit = store.bytes
    store.check_integrity()
    store.limit -= 1
    with pytest.raises(CacheError, match="more than it may"):
        store.check_integrity()
    store.limit += 1
    record.gone = True
    with pytest.raises(CacheError, match="a record that is gone"):
        store.check_integrity()


@both
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_pattern_survives(named, dtype):
    """All patterns of 16 bits; of 32 bits those with every upper and every lower half."""
    halves = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16)
    words = halves if dtype.itemsize == 2 else torch.stack([halves, halves.flip(0)], 1).view(torch.int32).flatten()
    rows = words.view(dtype).view(1, 64, 1024)
    arena = Arena(64)
    arena.reserve(64)
    arena.write(0, rows, rows.flip(1), torch.arange(64))
    before = content(arena, range(64))
    store = open_store(named, "8MiB")
    entry = store.offload(arena, range(64))
    wipe(arena)
    assert store.restore(entry, arena, range(64))
    assert same(content(arena, range(64)), before)
    store.close()


@both
def test_offloaded_kv_does_not_change_with_the_arena(named):
    arena = filled(PLAIN)
    before = content(arena, [5, 3])
    store = open_store(named, "1MiB")
    entry = store.offload(arena, [5, 3])
    wipe(arena)
    assert store.restore(entry, arena, [60, 61])
    assert same(content(arena, [60, 61]), before)
    store.close()


@both
def test_a_cleared_arena_is_rebuilt_and_grows_for_restored_kv(named):
    arena = filled(UNLIKE, rows=1024)
    before = content(arena, [7, 8, 9])
    store = open_store(named, "1MiB")
    entry = store.offload(arena, [7, 8, 9])
    arena.clear()
    arena.limit = 5000
    assert store.restore(entry, arena, [3000, 2, 3])
    assert same(content(arena, [3000, 2, 3]), before)
    assert arena.rows > 3000
    store.close()


@both
def test_restoring_resets_the_attention_of_the_slots(named):
    class RecordedStats(AttentionStats):
        def forget(self, slots):
            forgotten.extend(slots.tolist())

    forgotten = []
    arena = filled(PLAIN)
    arena.attention_stats = RecordedStats()
    store = open_store(named, "1MiB")
    entry = store.offload(arena, [1, 2])
    assert not forgotten
    store.restore(entry, arena, [4, 9])
    assert forgotten == [4, 9]
    store.close()


@both
def test_counters_and_costs_record_copies(named):
    arena = filled(PLAIN)
    store = open_store(named, 5 * size_of(PLAIN))
    first = store.offload(arena, range(3))
    assert not store.costs.copying.known
    store.restore(first, arena, range(3))
    store.restore(first, arena, range(3))
    assert store.costs.copying.known
    store.offload(arena, range(4))
    assert (store.offloaded_tokens, store.restored_tokens, store.displaced_tokens, store.refused_tokens) == (7, 6, 3, 0)
    store.close()


# -- the limit ---------------------------------------------------------------------------------------------------------


@both
def test_a_limit_of_one_token_holds_the_last_one(named):
    arena = filled(UNLIKE)
    store = open_store(named, size_of(UNLIKE))
    first, second = store.offload(arena, [1]), store.offload(arena, [2])
    assert (first.gone, second.gone) == (True, False)
    assert store.offload(arena, [3, 4]) is None
    assert not second.gone
    assert store.bytes == store.limit
    store.close()


@both
def test_a_limit_below_one_token_stores_nothing_and_warns_once(named, warnings):
    arena = filled(PLAIN)
    store = open_store(named, size_of(PLAIN) - 1)
    assert [store.offload(arena, [n]) for n in range(3)] == [None] * 3
    (sentence,) = warnings()
    assert f"its limit is {size_of(PLAIN) - 1} bytes, and one token takes {size_of(PLAIN)}" in sentence
    assert store.bytes == 0
    store.close()


@both
@pytest.mark.parametrize("use", ["restore", "prefetch"])
def test_the_least_recently_used_record_is_dropped_first(named, use):
    arena = filled(PLAIN)
    store = open_store(named, 2 * size_of(PLAIN))
    first, second = store.offload(arena, [1]), store.offload(arena, [2])
    store.restore(first, arena, [9]) if use == "restore" else store.prefetch(first)
    store.offload(arena, [3])
    assert (first.gone, second.gone) == (False, True)
    store.close()


@both
def test_the_halves_of_a_split_record_are_freed_separately(named):
    arena = filled(PLAIN)
    store = open_store(named, 6 * size_of(PLAIN))
    whole = store.offload(arena, range(6))
    head, tail = whole.split(2)
    tail.drop()
    tail.drop()
    assert store.bytes == 2 * size_of(PLAIN)
    assert not store.offload(arena, range(4)).gone
    assert (whole.gone, head.gone, tail.gone) == (True, False, True)
    assert [half.gone for half in tail.split(1)] == [True, True]
    store.check_integrity()
    store.close()


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_wrong_calls_are_errors_and_change_nothing():
    arena, store, other = filled(PLAIN), open_store("cpu", "1MiB"), open_store("cpu", "1MiB")
    entry = store.offload(arena, range(3))
    with pytest.raises(CacheError, match="of another shape"):
        store.offload(filled(UNLIKE), [1])
    with pytest.raises(CacheError, match="3 tokens"):
        store.restore(entry, arena, range(2))
    with pytest.raises(CacheError, match="another store"):
        other.restore(entry, arena, range(3))
    for at in (0, 3, -1):
        with pytest.raises(CacheError, match="cannot split 3 tokens"):
            entry.split(at)
    with pytest.raises(RuntimeError):  # there is no such slot
        store.offload(arena, [1, 5, ROWS])
    assert store.restore(entry, arena, range(3))
    assert store.bytes == 3 * size_of(PLAIN)
    store.check_integrity()


def test_integrity_notices_a_row_of_two_owners():
    store = open_store("cpu", "1MiB")
    arena = filled(PLAIN)
    one, other = store.offload(arena, [1]), store.offload(arena, [2])
    other._runs = one._runs
    with pytest.raises(CacheError, match="do not add up"):
        store.check_integrity()


def test_running_out_of_memory_stops_the_store_with_one_warning(warnings):
    class Boundless(Slabs):
        SIZE = 1 << 62

    arena = filled(PLAIN)
    store = OffloadStore("memory", 1 << 61, Boundless)
    assert [store.offload(arena, [n]) for n in range(2)] == [None, None]
    (sentence,) = warnings()
    assert "offload to memory stopped" in sentence
    assert "bytes of memory are to be had" in sentence
    assert "\n" not in sentence
    store.check_integrity()


def test_memory_is_allocated_when_needed_and_never_beyond_the_limit():
    arena, record = filled(PLAIN), size_of(PLAIN)
    places = []

    def make(records, rows):
        places.append(SmallSlabs(records, rows))
        return places[0]

    store = OffloadStore("test", 13 * record, make)
    taken = []
    for number in range(40):
        store.offload(arena, [number])
        taken.append(sum(map(len, places[0]._slabs)))
    assert taken[0] == places[0].step < 13
    assert taken[12:] == [13] * 28
