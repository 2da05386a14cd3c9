"""Offloaded KV is restored bit for bit, and KV that is not restored is computed: only time depends on it."""

import asyncio
import logging

import pytest

from rksc_tot.cache.offload.open_store import open_store
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine.base import Account, GenerateRequest, Sampling
from rksc_tot.engine.transformers_engine.engine import TransformersEngine
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.random_attention import RandomAttention
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import llama

PROMPT = "4 5 6 10\n"


def make(**options):
    tokenizer = build_tokenizer()
    return TransformersEngine(llama(len(tokenizer), layers=2), tokenizer, name="tiny", **options)


async def visits(engine, account, rounds=3, k=3, tokens=14):
    """Branches grown in turn from each other's ends, so that each round revisits paths evicted by the one before."""
    prompt = engine.open(PROMPT, account)
    ends, texts = [prompt], []
    for turn in range(rounds):
        for n, handle in enumerate(list(ends)[:4]):
            request = GenerateRequest(handle, stream_keys(range(k), turn, n), Sampling(), tokens)
            [found] = await engine.generate([request], account)
            texts += [(c.text, c.tokens, c.logprobs, c.finish, c.branches, c.exact) for c in found]
            ends += [c.handle for c in found]
    engine.check_integrity()
    for handle in ends:
        engine.release(handle)
    engine.engine_thread.empty_inbox()
    return texts


@pytest.fixture(scope="module")
def unhurried():
    with make() as engine:
        account = Account()
        texts = asyncio.run(visits(engine, account))
        return texts, account.ledger.peak_kv_bytes, account.ledger.prefill_tokens


def always_copy(engine):
    engine.offload_store.costs.copy_is_cheaper = lambda *_: True


@pytest.mark.parametrize("tier", ["cpu", "disk"])
@pytest.mark.parametrize("compress", [None, ArborKV(tail=2, sinks=0)], ids=["evicted whole", "reduced first"])
def test_restored_kv_equals_offloaded_kv_bit_for_bit(unhurried, tier, compress):
    texts, peak, prefilled = unhurried
    with make(kv_budget=peak // 4, offload=tier, compress=compress) as engine:
        always_copy(engine)
        account = Account()
        assert asyncio.run(visits(engine, account)) == texts
        assert account.ledger.restored_tokens > 0
        assert account.ledger.prefill_tokens < prefilled + account.ledger.restored_tokens
        assert account.ledger.peak_kv_bytes <= peak // 4
        engine.offload_store.check_integrity()
        engine.clear()
        assert engine.offload_store.bytes == 0  # no handle is left


def test_computing_instead_of_copying_gives_the_same_texts(unhurried):
    texts, peak, _ = unhurried
    with make(kv_budget=peak // 4, offload="cpu") as engine:
        engine.offload_store.costs.copy_is_cheaper = lambda *_: False
        account = Account()
        assert asyncio.run(visits(engine, account)) == texts
        assert account.ledger.restored_tokens == 0
        assert account.ledger.recomputed_tokens > 0


def test_a_store_too_small_for_all_keeps_to_its_budget_and_loses_nothing(unhurried):
    texts, peak, _ = unhurried
    with make(kv_budget=peak // 4, offload="cpu", offload_budget=peak // 16) as engine:
        always_copy(engine)
        account = Account()
        assert asyncio.run(visits(engine, account)) == texts
        assert engine.offload_store.bytes <= peak // 16
        assert engine.offload_store.displaced_tokens > 0
        engine.offload_store.check_integrity()


def test_a_disk_that_fills_up_is_logged_once_and_costs_only_time(unhurried, monkeypatch, caplog):
    texts, peak, _ = unhurried
    with make(kv_budget=peak // 4, offload="disk") as engine, caplog.at_level(logging.WARNING, "rksc_tot"):
        always_copy(engine)
        offload, calls = engine.offload_store.offload, []

        def fills_up(arena, slots):
            calls.append(slots)
            if len(calls) == 4:
                engine.offload_store._fail("No space left on device")
            return offload(arena, slots)

        monkeypatch.setattr(engine.offload_store, "offload", fills_up)
        account = Account()
        assert asyncio.run(visits(engine, account)) == texts
        assert len(calls) > 4
        assert account.ledger.recomputed_tokens > 0
    assert [r.getMessage() for r in caplog.records if "No space left" in r.getMessage()] != []
    assert sum("No space left" in r.getMessage() for r in caplog.records) == 1


def test_damaged_kv_is_computed_again(unhurried, monkeypatch, caplog):
    texts, peak, _ = unhurried
    with make(kv_budget=peak // 4, offload="cpu") as engine, caplog.at_level(logging.WARNING, "rksc_tot"):
        always_copy(engine)
        restore, calls = engine.offload_store.restore, []

        def damaged(record, arena, slots):
            calls.append(record)
            if len(calls) % 2:
                record.drop()
                return False
            return restore(record, arena, slots)

        monkeypatch.setattr(engine.offload_store, "restore", damaged)
        assert asyncio.run(visits(engine, Account())) == texts
        assert len(calls) > 2


def test_only_exact_kv_is_offloaded():
    with make(compress=RandomAttention(budget=12, recent=3), kv_budget="1MiB", offload="cpu") as engine:
        offload, offloaded = engine.offload_store.offload, []
        tree = engine.cache

        def recorded(arena, slots):
            [segment] = [s for s in tree.segments() if s.kv.slots == list(slots)]
            offloaded.append(segment)
            assert segment.kv.exact
            assert segment.kv.present is None
            assert all(above.kv.exact for above in segment.lineage())
            return offload(arena, slots)

        engine.offload_store.offload = recorded
        asyncio.run(visits(engine, Account()))
        assert offloaded


def test_lossless_drafts_stay_within_a_kv_budget_below_the_full_kv(unhurried):
    texts, peak, _ = unhurried
    budget = peak // 4
    with make(compress=RandomAttention(budget=16, recent=4), lossless=True, kv_budget=budget, offload="cpu") as engine:
        most = []
        compute = engine.scheduler._compute

        def recorded(blocks):
            compute(blocks)
            most.append(engine.cache.residency.pool.used * engine.bytes_per_token)

        engine.scheduler._compute = recorded
        account = Account()
        assert asyncio.run(visits(engine, account)) == texts
        assert max(most) <= budget
        verified = account.ledger.verified
        assert verified.drafted == verified.accepted + verified.rejected > 0


def test_a_given_store_is_closed_with_the_engine():
    store = open_store("cpu", "1MiB")
    with make(offload=store) as engine:
        assert engine.offload_store is store
    assert store.closed


@pytest.mark.parametrize("tier", ["cpu", "disk"])
async def test_kv_is_offloaded_before_heads_move_it(tier):
    with make(compress=RandomAttention(budget=12, recent=3), offload=tier) as engine:
        always_copy(engine)
        account = Account()
        handle = engine.open(PROMPT, account)
        request = GenerateRequest(handle, stream_keys(range(1), 0), Sampling(temperature=1.5), 60)
        [[written]] = await engine.generate([request], account)
        assert not written.exact
        assert await engine.rehydrate([written.handle], account) == [True]
        assert account.ledger.restored_tokens > 0
        [[kl, same]] = await engine.against_full([written.handle], account)
        assert same
        assert kl == pytest.approx(0, abs=1e-9)


def test_a_store_that_holds_no_token_is_refused():
    with pytest.raises(ConfigError, match=r"an offload budget of \d+ bytes - give \d+ at least, for one token"):
        make(offload="cpu", offload_budget=10)


def test_a_store_has_one_engine():
    store = open_store("cpu", "1MiB")
    with make(offload=store), pytest.raises(ConfigError, match="has an engine - give each engine a store of its own"):
        make(offload=store)
