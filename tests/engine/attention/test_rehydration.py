"""A rehydrated path is exact, also while other requests run."""

import asyncio

import pytest

from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine.base import Account, GenerateRequest, LabelRequest, Sampling
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.streaming_llm import Streaming
from tests.engine.attention.random_program import (
    HOT,
    ONE_SET,
    PER_HEAD,
    PROMPTS,
    TIGHT,
    shadowed,
    unshadowed,
)


async def wander(engine, account):
    """Branches grown from each other's ends in turn, with questions between that read the paths."""
    handles, found = [engine.open(text, account) for text in PROMPTS], []
    for turn in range(4):
        requests = [GenerateRequest(handles[-1 - n], stream_keys(range(3), turn, n), HOT, 9) for n in range(2)]
        requests.append(GenerateRequest(handles[turn], stream_keys(range(2), turn), Sampling(temperature=0), 9))
        replies = await engine.generate(requests, account)
        found += [(c.text, c.tokens, c.branches, c.finish, c.logprobs, c.exact) for reply in replies for c in reply]
        handles += [c.handle for reply in replies for c in reply]
        asked = [LabelRequest(handle, " ok", ("yes", "no")) for handle in handles[::3]]
        found += await engine.label(asked, account)
    return found


@pytest.mark.parametrize(("family", "rows"), [("llama", 2048), ("llama", 3), ("mistral", 7)])
async def test_rehydrated_paths_give_the_bits_of_uncompressed_paths(family, rows):
    with unshadowed(family) as engine:
        assert engine.numerics["batch_invariant"]
        plain = await wander(engine, Account())
    engine, shadow = shadowed(family, 90, compress=ONE_SET["arborkv"], max_batch_tokens=rows)
    with engine:
        account = Account()
        assert await wander(engine, account) == plain
        assert account.ledger.compression.acted > 10
        assert shadow.inexact == account.ledger.compression.rows == 0
        assert engine.cache.residency.pool.peak <= 90


@pytest.mark.parametrize("policy", [*PER_HEAD, *ONE_SET])
async def test_a_lossy_path_that_is_rehydrated_is_exact_again(policy):
    compress = {**PER_HEAD, **ONE_SET}[policy]
    engine, shadow = shadowed("llama", TIGHT if isinstance(compress, ArborKV) else None, compress=compress)
    with engine:
        account = Account()
        root = engine.open("say yes no", account)
        ((found,),) = await engine.generate([GenerateRequest(root, (1,), HOT, 30)], account)
        (others,) = await engine.generate([GenerateRequest(root, (2, 3), HOT, 16)], account)  # want the room
        before = account.ledger.prefill_tokens
        assert await engine.rehydrate([found.handle, *(c.handle for c in others)][:1], account) == [True]
        assert all(segment.whole for segment in found.handle.segment.lineage())
        assert account.ledger.prefill_tokens > before
        ((again,),) = await engine.generate([GenerateRequest(found.handle, (4,), HOT, 1)], account)
        assert again.exact
        shadow.check()
        before = account.ledger.prefill_tokens
        assert await engine.rehydrate([found.handle], account) == [True]
        assert account.ledger.prefill_tokens == before  # there was nothing to do


@pytest.mark.parametrize(("policy", "rows"), [
    ("snapkv", 2048), ("random_attention", 7), ("streaming", 3), ("random_attention", 1),
    *(
        pytest.param(*which, marks=pytest.mark.slow)
        for which in (("random_attention", 2048), ("streaming", 2048), ("snapkv", 16))
    ),
])  # fmt: skip
async def test_a_path_can_be_rehydrated_while_others_append_to_it(policy, rows):
    engine, shadow = shadowed("llama", None, compress={**PER_HEAD, **ONE_SET}[policy], max_batch_tokens=rows)
    with engine:
        account = Account()
        root = engine.open("say yes no", account)
        ((found,),) = await engine.generate([GenerateRequest(root, (1,), HOT, 30)], account)
        assert any(segment.kv.present is not None for segment in found.handle.segment.lineage())
        writing = engine.generate([GenerateRequest(found.handle, (2, 3), HOT, 30)], account)
        (reply,), *whole = await asyncio.gather(
            writing, *(rehydrate_in_a_while(engine, found.handle, n) for n in range(5))
        )
        assert whole == [[True]] * 5
        assert all(said == was for said, was in shadow.said)
        shadow.check()
        engine.check_integrity()
        assert [s for s in engine.cache.segments() if s.pins] == []
        for handle in (root, found.handle, *(completion.handle for completion in reply)):
            engine.release(handle)
        engine.clear()
        assert engine.cache.residency.pool.used == 0


async def test_tokens_drawn_from_compressed_kv_are_not_exact_after_rehydration():
    engine, shadow = shadowed("llama", 400, compress=Streaming(budget=300))
    with engine:
        account = Account()
        root = engine.open("say yes no", account)
        await engine.generate([GenerateRequest(root, (1,), HOT, 1)], account)
        with engine.engine_thread.books():
            engine.cache.residency.compress(root.segment, [0, len(root.tokens) - 1])
        writing = asyncio.create_task(engine.generate([GenerateRequest(root, (2,), HOT, 20)], account))
        while engine.usage.passes < 6:
            await asyncio.sleep(0)
        with engine.engine_thread.books():
            engine.cache.evictor.evict_subtree(root.segment)
        ((found,),) = await writing
        assert shadow.exact[max((path for _, path in shadow.drawn), key=len)]  # the last of it
        assert not found.exact
        assert shadow.said[-1] == (False, False)


async def test_logits_from_before_rehydration_are_not_used_afterwards():
    engine, shadow = shadowed("llama", 400, compress=Streaming(budget=300))
    with engine:
        account = Account()
        root = engine.open("say yes no", account)
        await engine.generate([GenerateRequest(root, (1,), HOT, 1)], account)
        with engine.engine_thread.books():
            engine.cache.residency.compress(root.segment, [0])
        middle = engine.extend(root, " yes")
        below = engine.extend(middle, " no.")
        writing = asyncio.create_task(engine.generate([GenerateRequest(below, (2,), HOT, 60)], account))
        while middle.place is None or middle.segment.logits is None:
            await asyncio.sleep(0)
        engine.release(middle)  # what it gave stays, as work runs below
        assert await engine.rehydrate([below], account) == [True]
        again = engine.extend(root, " yes")
        ((found,),) = await engine.generate([GenerateRequest(again, (3,), HOT, 1)], account)
        assert shadow.said[-1] == (found.exact, found.exact) == (True, True)
        assert not writing.done()
        await writing


async def test_a_path_is_rehydrated_while_others_need_less_of_it():
    engine, shadow = shadowed("llama", 400, compress=Streaming(budget=300), max_batch_tokens=1)
    with engine:
        account = Account()
        root = engine.open("say yes no", account)
        below = engine.extend(root, " yes no.")
        await engine.generate([GenerateRequest(below, (1,), HOT, 1)], account)
        with engine.engine_thread.books():
            engine.cache.residency.compress(root.segment, [0])
            below.segment.logits = None
        request = GenerateRequest(below, (2,), HOT, 1)
        (((found,),), whole) = await asyncio.gather(
            engine.generate([request], account), engine.rehydrate([below], account)
        )
        assert (found.exact, whole) == (False, [True])
        assert all(segment.whole for segment in below.segment.lineage())
        shadow.check()


async def rehydrate_in_a_while(engine, handle, n):
    until = engine.usage.passes + 4 * n
    while engine.usage.passes < until:
        await asyncio.sleep(0)
    return await engine.rehydrate([handle], Account())


async def test_inexact_logits_are_dropped_when_exact_kv_is_restored():
    engine, shadow = shadowed("llama", 400, compress=Streaming(budget=300), offload="cpu")
    with engine:
        costs, account = engine.offload_store.costs, Account()
        root = engine.open("say yes no", account)
        above = engine.extend(root, " yes")
        below = engine.extend(above, " no.")

        async def write(handle):
            ((found,),) = await engine.generate([GenerateRequest(handle, (1,), HOT, 1)], account)
            return found.exact

        assert await write(below)
        with engine.engine_thread.books():
            engine.cache.room.make_room(400)  # all of it is exact, and goes to the store
        costs.copy_is_cheaper = lambda *_: False
        assert await write(root)
        with engine.engine_thread.books():
            engine.cache.residency.compress(root.segment, [0, 3])
        assert not await write(above)
        costs.copy_is_cheaper = lambda *_: True
        assert await engine.rehydrate([below], account) == [True]
        assert shadow.restored > 0
        assert await write(above)
        assert all(said == was for said, was in shadow.said)
        shadow.check()
