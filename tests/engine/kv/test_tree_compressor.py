"""Thoughts are compressed before any thought is evicted, and thoughts in use are left alone."""

import pytest

from rksc_tot import load_engine, solve
from rksc_tot.engine.base import Account
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.strategies import BFS
from tests.engine.conftest import PER_TOKEN
from tests.engine.kv.compressed import LONG, Levelling, ask, grow


@pytest.mark.parametrize("policy", [ArborKV(tail=2), Levelling(), Levelling(rehydrate=False)])
async def test_thoughts_are_compressed_before_any_thought_is_evicted(make, policy):
    with make(compress=policy, kv_budget=300 * PER_TOKEN) as engine:
        account = Account()
        await grow(engine, account)
        assert account.ledger.compression.acted > 5
        assert engine.cache.residency.pool.peak <= 300
        assert any(segment.resident and segment.kv.present is not None for segment in engine.cache.segments())
        assert engine.cache.eviction_log.tokens < account.ledger.compression.tokens


async def test_thoughts_in_use_are_not_compressed(make, monkeypatch):
    seen = []

    class Spying(Levelling):
        def allot(self, blocks, budget):
            seen.append([block for block in blocks if block.protected])
            return super().allot(blocks, 0)  # as little as can be

    with make(compress=Spying(rehydrate=False), kv_budget=120 * PER_TOKEN) as engine:
        compress, compressed = engine.cache.residency.compress, []

        def recorded(segment, kept, per_head=False):
            assert not segment.pins
            compressed.append(segment)
            compress(segment, kept, per_head)

        monkeypatch.setattr(engine.cache.residency, "compress", recorded)
        account = Account()
        root = engine.open(LONG, account)
        for name in range(6):
            await engine.generate([ask(root, name, k=1, max_tokens=60)], account)
    assert any(seen)
    assert compressed


def test_a_search_finishes_in_a_quarter_of_the_kv_it_needs():
    search = {"strategy": BFS(b=3, k=6), "verifier": "lm_value"}
    with load_engine() as engine:
        plain = solve("game24", "4 5 6 10", engine=engine, **search)
    budget = plain.ledger.peak_kv_bytes // 4
    with load_engine(compress=ArborKV(tail=2, sinks=0), kv_budget=budget, eviction="none") as engine:
        found = solve("game24", "4 5 6 10", engine=engine, **search)
        engine.check_integrity()
        assert engine.cache.residency.pool.peak * engine.bytes_per_token <= budget
    assert [(n.text, n.score, n.pruned, n.exact) for n in found.tree] == [
        (n.text, n.score, n.pruned, True) for n in plain.tree
    ]
    assert found.ledger.compression.acted > 0
