"""Completions of one generation: equal texts share one."""

from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.engine.jobs.generation.branches import BranchGroup
from rksc_tot.engine.jobs.generation.completions import Completions
from rksc_tot.policies.eviction.rsbcm import RSBCM


def group(tree, *branches, exact=True):
    return BranchGroup(tree.origin, branches, None, [], exact)


def test_branches_with_equal_texts_share_a_completion_which_is_exact_only_if_all_are():
    tree = PrefixTree(SlotPool(9), RSBCM())
    completions = Completions(tree, tree.origin, True, ())
    completions.add(group(tree, 3), "b", [2], [-1.0], "stop")
    completions.add(group(tree, 2, 4), "a", [1], [-1.0], "stop")
    completions.add(group(tree, 0, exact=False), "a", [1], [-1.0], "stop")
    completions.add(group(tree, 1), "a", [1], [-1.0], "eos")
    found = completions.in_order()
    assert [(c.text, c.finish, c.branches, c.exact) for c in found] == [
        ("a", "stop", (0, 2, 4), False), ("a", "eos", (1,), True), ("b", "stop", (3,), True),
    ]  # fmt: skip
    assert found[0].handle.handles == 2  # one for each completion on this path
    completions.clear()
    assert found[0].handle.handles == found[2].handle.handles == 0
