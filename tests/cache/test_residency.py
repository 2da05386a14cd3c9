"""Residency: missing tokens, exact KV, visits, and undoing a pass."""

import pytest

from tests.cache.small_tree import hung, make_tree, store

# -- missing -------------------------------------------------------------------------------------------------------------


def test_missing_names_the_first_token_without_kv_of_each_segment_top_down():
    tree = make_tree()
    trunk = tree.walk(tree.origin, [1, 2, 3])
    leaf = tree.walk(trunk, [4, 5])
    tree.hold(leaf)
    assert tree.residency.missing(leaf) == [(trunk, 0), (leaf, 0)]
    store(tree, trunk, 2)
    assert tree.residency.missing(leaf) == [(trunk, 2), (leaf, 0)]
    store(tree, trunk, 1)
    store(tree, leaf, 1)
    assert tree.residency.missing(leaf) == [(leaf, 1)]
    store(tree, leaf, 1)
    assert tree.residency.missing(leaf) == tree.residency.missing(leaf, exact=True) == []


def test_the_last_token_of_a_resident_path_is_missing_once_its_kv_was_dropped():
    tree = make_tree()
    leaf = hung(tree, tree.origin, [1, 2, 3])
    tree.residency.compress(leaf, [0, 2])
    assert tree.residency.missing(leaf) == []
    tree.residency.compress(leaf, [0])
    assert tree.residency.missing(leaf) == [(leaf, 2)]


def test_exact_missing_names_dropped_tokens_and_tokens_computed_after_them():
    tree = make_tree()
    trunk = hung(tree, tree.origin, [1, 2, 3])
    tree.residency.compress(trunk, [0, 2])
    leaf = hung(tree, trunk, [4])
    assert tree.residency.missing(leaf) == []
    assert tree.residency.missing(leaf, exact=True) == [(trunk, 1), (leaf, 0)]
    tree.residency.store(trunk, [tree.residency.pool.allocate(1)[0], trunk.kv.slots[1]], first=1)
    assert tree.residency.missing(leaf, exact=True) == [(leaf, 0)]


def test_a_token_stored_again_is_not_new():
    tree = make_tree(4)
    segment = tree.walk(tree.origin, [1, 2])
    tree.hold(segment)
    assert store(tree, segment, 2) == 2
    tree.room.make_room(4)
    assert store(tree, segment, 2) == 0


# -- exact KV, visits ------------------------------------------------------------------------------------------------


def test_kv_computed_below_compressed_kv_is_not_exact_and_restored_kv_is():
    tree = make_tree()
    segment = tree.walk(tree.origin, [1, 2, 3, 4])
    tree.hold(segment)
    store(tree, segment, 3)
    tree.residency.compress(segment, [0, 2])
    store(tree, segment, 1)
    assert (segment.kv.exact_tokens, segment.kv.present, segment.kv.exact) == (3, [0, 2, 3], False)
    new = tree.residency.pool.allocate(1)
    present = segment.kv.slots_of(range(4))
    tree.residency.restore(segment, [present.get(n, new[0]) for n in range(4)], None)
    assert segment.whole
    tree.check_integrity()


def test_a_visit_counts_once_however_often_a_job_moves_on():
    tree = make_tree()
    trunk = hung_at = tree.walk(tree.origin, [1])
    tree.residency.pin(trunk)
    for token in (2, 3, 4):
        below = tree.walk(hung_at, [token])
        tree.residency.pin(below)
        tree.residency.unpin(hung_at)
        hung_at = below
    assert (trunk.uses, hung_at.uses) == (1, 1)
    tree.hold(hung_at)
    tree.residency.unpin(hung_at)
    tree.residency.pin(hung_at)
    assert (trunk.uses, hung_at.uses) == (2, 2)


# -- undo ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
def test_undoing_a_pass_leaves_everything_as_it_was(compressed):
    tree = make_tree()
    segment = tree.walk(tree.origin, [1, 2, 3, 4, 5])
    tree.hold(segment)
    store(tree, segment, 3)
    if compressed:
        tree.residency.compress(segment, [0, 2])
    before, used = segment.kv.state(), tree.residency.pool.used
    store(tree, segment, 2)
    tree.residency.undo_store(segment, 2, before.ever_computed)
    assert (segment.kv.state(), tree.residency.pool.used) == (before, used)
    if compressed:
        tree.residency.store(segment, [*tree.residency.pool.allocate(1), segment.kv.slots[1]], first=1)
        tree.residency.undo_overwrite(segment, before)
        assert (segment.kv.state(), tree.residency.pool.used) == (before, used)
    tree.check_integrity()
