"""Whole searches find the same trees with drafts."""

import asyncio

import pytest

from rksc_tot import asolve, load_engine, solve, solve_many
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.lossless import Lossless
from rksc_tot.policies.compression.random_attention import RandomAttention
from rksc_tot.policies.compression.snapkv import SnapKV
from rksc_tot.policies.compression.streaming_llm import Streaming
from rksc_tot.strategies import BFS

PUZZLES = ["4 5 6 10", "1 2 3 4"]
SEARCH = {"strategy": BFS(b=2, k=4), "verifier": "lm_value"}
OF_GAME24 = {
    "random_attention": RandomAttention(budget=24, recent=4),
    "streaming": Streaming(budget=24, recent=4),
    "snapkv": SnapKV(budget=24, recent=4),
    "arborkv": ArborKV(tail=2, sinks=0),
}


def shape(result):
    return result.path, [
        (n.parent, n.branch, n.text, n.tokens, n.count, n.pruned, n.score, n.exact) for n in result.tree
    ]


@pytest.fixture(scope="module")
def trees():
    with load_engine() as engine:
        return {puzzle: shape(solve("game24", puzzle, engine=engine, **SEARCH)) for puzzle in PUZZLES}


@pytest.mark.parametrize("policy", OF_GAME24)
def test_a_search_finds_the_same_tree(trees, policy):
    with load_engine(compress=OF_GAME24[policy], lossless=Lossless(horizon=8)) as engine:
        outcomes = list(solve_many("game24", PUZZLES, engine=engine, concurrency=2, **SEARCH))
        engine.check_integrity()
        assert [s for s in engine.cache.segments() if s.pins or s.handles] == []
    assert {outcome.problem: shape(outcome.result) for outcome in outcomes} == trees
    verified = [outcome.result.ledger.verified for outcome in outcomes]
    assert all(v.drafted == v.accepted + v.rejected > 0 for v in verified)


async def test_a_search_in_little_room_finds_the_same_tree(trees):
    compress = OF_GAME24["arborkv"]
    with load_engine(kv_budget=80 * 6144, compress=compress, lossless=Lossless(horizon=8)) as engine:
        found = await asyncio.gather(*(asolve("game24", puzzle, engine=engine, **SEARCH) for puzzle in PUZZLES))
        engine.check_integrity()
        assert engine.cache.residency.pool.peak <= 80 * 6144 // engine.bytes_per_token
    assert [shape(result) for result in found] == [trees[puzzle] for puzzle in PUZZLES]
