"""Stats for a tree policy describe thoughts, for any division into segments."""

import math

from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.engine.kv.thought_stats import thought_stats
from rksc_tot.policies.eviction.rsbcm import RSBCM


def grown():
    """Two thoughts with a common beginning, "ab" + "c" and "ab" + "de", and a thought "f" after the second."""
    tree = PrefixTree(SlotPool(100), RSBCM())
    prompt = tree.walk(tree.origin, b"prompt")
    tree.hold(prompt, prompt=True)
    ends = {}
    for name, path in {"abc": b"abc", "abde": b"abde"}.items():
        ends[name] = tree.walk(prompt, path)
        tree.hold(ends[name])
    ends["f"] = tree.walk(ends["abde"], b"f")
    tree.hold(ends["f"])
    return tree, prompt, ends


def test_a_shared_beginning_has_the_value_and_entropy_of_its_best_thought():
    tree, _, ends = grown()
    for name, score in {"abc": 1.0, "abde": 3.0, "f": 9.0}.items():
        ends[name].score, ends[name].entropy = score, score / 10
    found, common = thought_stats(tree), ends["abc"].parent
    assert bytes(common.tokens) == b"ab"
    assert found[common][:2] == (3.0, 0.3)  # not of the thought after it
    assert found[ends["abc"]][:2] == (1.0, 0.1)
    assert found[ends["f"]][:2] == (9.0, 0.9)


def test_an_unknown_value_is_not_a_number_and_worse_than_any():
    tree, _, ends = grown()
    ends["abc"].score = -5.0
    found = thought_stats(tree)
    assert found[ends["abc"].parent].value == -5.0
    assert math.isnan(found[ends["abde"]].value)


def test_below_counts_the_tokens_up_to_the_nearest_end_of_a_thought():
    tree, prompt, ends = grown()
    found = thought_stats(tree)
    assert found[ends["abc"].parent].below == 1
    assert [found[ends[name]].below for name in ("abc", "abde", "f")] == [0, 0, 0]
    assert found[prompt].below == 0


def test_distance_counts_thoughts_and_not_segments():
    tree, prompt, ends = grown()
    tree.residency.pin(ends["f"])
    found = thought_stats(tree)
    assert found[ends["f"]].distance == 0
    assert found[ends["abde"]].distance == 1
    assert found[ends["abc"].parent].distance == 1  # the same thought
    assert found[ends["abc"]].distance == 1  # begins as that one does
    assert found[prompt].distance == 2


def test_without_running_jobs_all_segments_are_equally_far():
    tree, _, _ = grown()
    assert len({standing.distance for standing in thought_stats(tree).values()}) == 1
