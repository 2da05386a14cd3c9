"""Carrying out evictions: what is offloaded, and what stays."""

from tests.cache.reference import compute
from tests.cache.small_tree import Offloads, hung, make_tree


def test_kv_is_offloaded_before_it_goes_only_where_a_handle_refers_to_it():
    offloads = Offloads()
    tree = make_tree(9, offloader=offloads)
    trunk = hung(tree, tree.origin, [1, 2])
    held, unheld = hung(tree, trunk, [3]), hung(tree, trunk, [4])
    tree.drop(unheld)
    tree.room.make_room(9)
    assert offloads.seen == [held, trunk]
    compute(tree, held)
    tree.residency.compress(trunk, [0])
    assert offloads.seen == [held, trunk, trunk]
    tree.evictor.invalidate(trunk)
    assert offloads.seen == [held, trunk, trunk]
    assert not tree.residency.pool.used


def test_a_subtree_is_evicted_also_where_jobs_run():
    tree = make_tree()
    trunk = hung(tree, tree.origin, [1, 2])
    leaf, other = hung(tree, trunk, [3]), hung(tree, tree.origin, [4])
    tree.residency.pin(leaf)
    tree.evictor.evict_subtree(trunk)
    assert tree.residency.missing(leaf) == [(trunk, 0), (leaf, 0)]
    assert other.resident
    tree.check_integrity()


def test_clearing_leaves_what_handles_and_running_jobs_need():
    tree = make_tree()
    held, pinned, unheld = (hung(tree, tree.origin, [token]) for token in (1, 2, 3))
    tree.residency.pin(pinned)
    for segment in (pinned, unheld):
        tree.drop(segment)
    tree.evictor.clear()
    assert {segment for segment in tree.segments() if segment.kv.slots} == {held, pinned}
