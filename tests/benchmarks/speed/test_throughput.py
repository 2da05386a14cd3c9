"""Both concurrencies search the same problems with an empty cache, and their trees are compared in full."""

import pytest

from benchmarks.common.random_models import SHAPES, word_tokenizer
from benchmarks.speed.throughput import CONCURRENCIES, PROMPT, THOUGHT, Case, compare, games, small_searches, tree
from rksc_tot import solve


@pytest.fixture(scope="module")
def searched():
    engine, case = small_searches("tiny", quick=True)
    with engine:
        case.problems = case.problems[:3]
        compare(engine, [case], 2)
        yield engine, case


def test_every_round_searches_every_problem_at_both_concurrencies(searched):
    _, case = searched
    for concurrency in CONCURRENCIES:
        assert [set(found) for found in case.trees[concurrency]] == [set(case.problems)] * 2
        assert len(case.seconds[concurrency]) == 2


def test_the_cache_is_empty_at_the_start_of_each_round():
    engine, case = small_searches("tiny", quick=True)
    case.problems = case.problems[:2]
    rows = []
    with engine:
        for _ in range(2):
            before = engine.usage.rows
            case.run(engine, 1)
            rows.append(engine.usage.rows - before)
    assert rows[0] == rows[1] > 0


def test_many_problems_share_a_pass(searched):
    _, case = searched
    one, many = CONCURRENCIES
    assert min(case.rows_per_pass[many]) > 1.5 * max(case.rows_per_pass[one])


def test_equal_trees_are_reported_as_equal(searched):
    _, case = searched
    assert case.equal() == (3 * len(case.problems), 3 * len(case.problems))
    figures = case.figures()
    assert 0 < figures["speedup_32.smollm2_shape.low"] <= figures["speedup_32.smollm2_shape"]


NODE = ("0.1", "a thought", None, "0.5")


@pytest.mark.parametrize("at", range(4))
def test_trees_that_differ_are_not_reported_as_equal(at):
    other = (*NODE[:at], "other", *NODE[at + 1 :])
    case = Case("x", "game24", ["p"], "bfs", trees={1: [{"p": [NODE]}], 32: [{"p": [NODE]}, {"p": [other]}]})
    assert case.equal() == (1, 2)
    case.trees[32][1]["p"] = [NODE, NODE]
    assert case.equal() == (1, 2)


def test_prompts_and_thoughts_have_the_documented_lengths(searched):
    engine, case = searched
    tokenizer = word_tokenizer(SHAPES["tiny"]["vocab_size"])
    lengths = [
        len(tokenizer.encode(problem, add_special_tokens=False)) for problem in small_searches("tiny", True)[1].problems
    ]
    assert all(PROMPT[0] <= length <= PROMPT[1] for length in lengths)
    assert len(set(lengths)) > 3
    result = solve(case.task, case.problems[0], engine=engine, strategy=case.strategy)
    thoughts = [node for node in result.tree if node.depth]
    assert {node.depth for node in thoughts} == {1, 2, 3}
    words = {len(node.text.split()) for node in thoughts}
    assert min(words) >= THOUGHT[0]
    assert max(words) <= THOUGHT[1]
    assert len(words) > 1
    assert all(node.score is not None for node in thoughts)
    assert len(tree(result)) == len(result.tree)


def test_the_games_are_held_out_and_all_different():
    [usual] = games(quick=True)
    cases = games(quick=False)
    assert [case.name for case in cases] == ["embedded", "embedded_bfs", "embedded_dfs", "embedded_chain"]
    assert all(len(set(case.problems)) == 64 for case in cases)
    assert usual.problems == cases[0].problems[:8]
