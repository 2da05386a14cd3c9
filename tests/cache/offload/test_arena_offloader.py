"""Only exact KV that is present in full is copied to the store, and only once."""

from rksc_tot.cache.offload.arena_offloader import ArenaOffloader
from rksc_tot.cache.offload.open_store import open_store
from rksc_tot.cache.segment import Segment
from tests.cache.offload.arenas import PLAIN, content, filled, same


def segment_with(slots):
    segment = Segment(Segment(None, [], 0, 0), [0] * len(slots), 0, 1)
    segment.kv.put(0, slots)
    segment.kv.exact_tokens = len(slots)
    return segment


def test_exact_kv_is_copied_once_and_again_when_there_is_more_of_it_or_the_copy_is_gone():
    arena, store = filled(PLAIN), open_store("cpu", "1MiB")
    segment, offloader = segment_with([3, 7]), ArenaOffloader(store, arena)
    offloader.offload(segment)
    first = segment.kv.offloaded
    assert store.restore(first, arena, [20, 21])
    assert same(content(arena, [20, 21]), content(arena, [3, 7]))
    offloader.offload(segment)
    assert segment.kv.offloaded is first
    segment.tokens.append(0)
    segment.kv.put(2, [9])
    segment.kv.exact_tokens = 3
    offloader.offload(segment)
    assert (first.gone, segment.kv.offloaded.tokens, store.offloaded_tokens) == (True, 3, 5)
    segment.kv.offloaded.drop()
    offloader.offload(segment)
    assert not segment.kv.offloaded.gone


def test_compressed_or_inexact_kv_is_not_copied_and_an_earlier_copy_stays():
    store = open_store("cpu", "1MiB")
    offloader = ArenaOffloader(store, filled(PLAIN))
    compressed, inexact, empty, kept = (
        segment_with([1, 2]),
        segment_with([3, 4]),
        segment_with([]),
        segment_with([5, 6]),
    )
    offloader.offload(kept)
    copy = kept.kv.offloaded
    for segment in (compressed, kept):
        segment.kv.keep([0], per_head=False)
    inexact.kv.exact_tokens = 1
    for segment in (compressed, inexact, empty, kept):
        offloader.offload(segment)
    assert [segment.kv.offloaded for segment in (compressed, inexact, empty, kept)] == [None, None, None, copy]
    assert not copy.gone
