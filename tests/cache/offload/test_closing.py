"""A closed store holds nothing and stores nothing; closing may come from any thread at any moment."""

import gc
import threading

import pytest

from rksc_tot.cache.offload.disk import SpillFile
from rksc_tot.cache.offload.memory import Slabs
from rksc_tot.cache.offload.open_store import open_store
from rksc_tot.cache.offload.store import OffloadStore
from tests.cache.offload.arenas import PLAIN, content, filled, same, size_of
from tests.patience import PATIENCE

both = pytest.mark.parametrize("named", ["cpu", "disk"])


@both
def test_a_closed_store_holds_nothing_and_can_be_closed_again(named):
    arena = filled(PLAIN)
    store = open_store(named, "1MiB")
    entry = store.offload(arena, range(3))
    place = store._place
    store.close()
    store.close()
    assert place._slabs == [] if named == "cpu" else place._file.closed
    assert entry.gone
    assert store.bytes == 0
    assert not store.restore(entry, arena, range(3))
    assert store.offload(arena, [1]) is None
    entry.drop()
    store.prefetch(entry)
    store.check_integrity()


@both
def test_an_empty_store_can_be_closed(named):
    store = open_store(named, "1MiB")
    store.close()
    assert store.offload(filled(PLAIN), [1]) is None


def test_closing_waits_for_a_running_copy():
    class Slow(Slabs):
        def put(self, rows, arena, slots):
            begun.set()
            go_on.wait(PATIENCE)
            super().put(rows, arena, slots)

    begun, go_on = threading.Event(), threading.Event()
    store, arena, records = OffloadStore("test", 1 << 20, Slow), filled(PLAIN), []
    copier = threading.Thread(target=lambda: records.append(store.offload(arena, [1])))
    closer = threading.Thread(target=store.close)
    copier.start()
    begun.wait(PATIENCE)
    closer.start()
    closer.join(0.1)
    assert closer.is_alive()
    assert not store.closed
    go_on.set()
    copier.join()
    closer.join()
    assert store.closed
    assert records[0].gone


@both
def test_another_thread_may_close_at_any_moment(named):
    arena = filled(PLAIN)
    for _ in range(15):
        store = open_store(named, 20 * size_of(PLAIN))
        store.offload(arena, [0])
        closer = threading.Thread(target=store.close)
        closer.start()
        while (entry := store.offload(arena, range(5))) is not None:
            bits = content(arena, range(5))
            if store.restore(entry, arena, range(10, 15)):
                assert same(content(arena, range(10, 15)), bits)
            for half in entry.split(2):
                store.prefetch(half)
        closer.join()
        store.check_integrity()
        assert store.bytes == 0


@pytest.mark.parametrize("make", [Slabs, SpillFile])
def test_an_unreferenced_store_closes_without_a_warning(make):
    store = OffloadStore("test", 1 << 20, make)
    entry = store.offload(filled(PLAIN), [1])
    assert entry is not None
    del store, entry
    gc.collect()
