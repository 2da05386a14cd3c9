"""The memory of a node is counted in full, and is small."""

import random

import pytest

from benchmarks.speed import scale
from benchmarks.speed.scale import (
    KV_BUDGET,
    TimedEngine,
    engine_memory,
    grown,
    kept_bytes,
    resident_after,
    thought_bytes,
    write,
)
from rksc_tot.core.tree import ReasoningTree
from rksc_tot.engine.mock.engine import MockEngine


@pytest.mark.parametrize("nodes", [100, 1000])
def test_a_tree_has_the_given_number_of_nodes(nodes):
    result = grown(nodes, MockEngine(write))
    assert len(result.tree) - 1 == result.ledger.nodes == nodes
    assert result.ledger.merged == result.ledger.rejected == 0
    assert {len(node.tokens) for node in result.tree} == {0, 17}


def test_an_object_that_many_nodes_share_is_counted_once():
    tree = ReasoningTree()
    root = tree.add()
    alone = thought_bytes(tree)
    long = "thought" * 100
    for _ in range(3):
        tree.add(root, text=long)
    once = thought_bytes(tree)
    assert 700 < once - alone < 1400
    tree.add(root, text="".join(list(long)))
    assert thought_bytes(tree) - once > 700


def test_a_node_keeps_less_than_two_kilobytes_beside_its_thought():
    kept_bytes(100)
    (few, few_thoughts), (many, many_thoughts) = kept_bytes(100), kept_bytes(300)
    assert 0 < (many - many_thoughts - few + few_thoughts) / 200 <= 2048
    assert many_thoughts - few_thoughts > 200 * 2 * 17 * 8  # an id and a log-probability for each token


def test_the_engine_measures_its_own_time():
    engine = TimedEngine(write)
    grown(100, engine)
    assert engine.seconds > 0


def test_memory_is_reported_at_each_mark_and_every_problem_is_searched():
    assert [mib > 1 for mib in resident_after((3, 40))] == [True, True]


def test_a_problem_that_fails_is_not_counted_as_searched(monkeypatch):
    def fails(text: str, rng: random.Random) -> str:
        raise ValueError("no")

    monkeypatch.setattr(scale, "write", fails)
    with pytest.raises(RuntimeError, match=r"problem 1 was not searched: .*the writer"):
        list(resident_after((3,)))


def test_the_arena_of_the_engine_stays_within_its_budget_and_growth_is_counted_from_the_second_batch():
    figures = engine_memory(3, 2)
    assert figures["searches"] == 6
    assert list(figures["rss_growth_mib"]) == ["2", "3"]
    assert figures["total_growth_mib"] == pytest.approx(sum(figures["rss_growth_mib"].values()), abs=0.2)
    assert 0 < figures["peak_kv_mib"] <= figures["arena_mib"] <= KV_BUDGET / 2**20
    assert figures["arena_over_peak"] >= 1


def test_texts_of_the_writer_have_equal_length():
    assert {len(write("", random.Random(seed))) for seed in range(300)} == {17}
