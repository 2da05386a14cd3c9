"""VeriCache: drafting does not change the output, and drafts are accepted as far as compressed KV predicts the full KV."""

import asyncio
from functools import cache

import pytest

from rksc_tot.engine.base import Account, Sampling
from rksc_tot.policies.compression.lossless import Lossless
from rksc_tot.policies.compression.random_attention import RandomAttention
from rksc_tot.policies.compression.registry import COMPRESSION_POLICIES
from rksc_tot.policies.compression.snapkv import SnapKV
from rksc_tot.policies.compression.streaming_llm import Streaming
from tests.engine.kv.lossless import NONSENSE, POLICIES, PROMPTS, ask, grow, held, run, written


@pytest.fixture(scope="module")
def plainly(make):
    """Text without drafts, by temperature."""

    @cache
    def found(temperature):
        sampling = Sampling(temperature=temperature)
        return run(make(), lambda engine: grow(engine, Account(), "s", sampling=sampling))

    return found


@pytest.fixture(scope="module")
def elsewhere(make):
    """Texts of two other requests, without drafts."""
    with make() as engine:
        return [asyncio.run(grow_elsewhere(engine, n)) for n in range(2)]


@pytest.mark.parametrize("temperature", [0, 1.2])
@pytest.mark.parametrize("policy", [RandomAttention(budget=500), Streaming(budget=500), SnapKV(budget=500)])
def test_all_draft_tokens_are_accepted_where_all_kv_is_kept(make, policy, temperature, plainly):
    account, sampling = Account(), Sampling(temperature=temperature)
    found = run(make(compress=policy, lossless=True), lambda engine: grow(engine, account, "s", sampling=sampling))
    assert found == plainly(temperature)
    assert account.ledger.verified.acceptance == 1.0
    assert account.ledger.compression.tokens == 0
    assert account.ledger.verified.drafted > 100
    assert account.ledger.verified.rounds == 2  # 32 tokens, then the rest


def test_drafts_from_useless_kv_are_rejected(make, wanted):
    account = Account()
    found = run(make(compress=NONSENSE, lossless=True), lambda engine: grow(engine, account, "s"))
    assert found == wanted
    assert account.ledger.verified.acceptance < 0.7
    assert account.ledger.compression.tokens > 0


async def test_a_draft_has_at_most_twice_as_many_tokens_as_were_accepted_of_the_previous_one(make):
    with make(compress=NONSENSE, lossless=Lossless(horizon=8)) as engine:
        account = Account()
        await engine.generate([ask(engine.open("say yes", account), k=1, max_tokens=20)], account)
        verified = account.ledger.verified
        assert verified.rounds > 2
        assert verified.drafted <= 8 + verified.rounds + 2 * verified.accepted  # a draft has at least one token


@pytest.mark.parametrize("policy", [NONSENSE, POLICIES["streaming"]], ids=["nonsense", "streaming"])
async def test_rejected_draft_tokens_leave_no_kv(make, policy):
    """Streaming has some of its tokens accepted, so its branches differ in length when a verification ends."""
    with make(compress=policy, lossless=Lossless(horizon=6)) as engine:
        account = Account()
        root = engine.open("say yes", account)
        await engine.generate([ask(root, max_tokens=20)], account)
        engine.check_integrity()
        assert account.ledger.verified.rejected > 0
        assert [segment.tokens for segment in engine.cache.segments() if segment.unreferenced] == []


def test_a_repeated_request_gives_the_same_text(make, wanted):
    """The path is resident, but the logits of its inner tokens are dropped."""

    async def twice(engine):
        account = Account()
        root = engine.open("say yes", account)
        found = []
        for _ in range(2):
            (reply,) = await engine.generate([ask(root)], account)
            found.append(written(reply))
            for completion in reply:
                engine.release(completion.handle)
        held(engine, [root])
        return found

    assert run(make(compress=NONSENSE, lossless=Lossless(horizon=6)), twice) == wanted[0] * 2


@pytest.mark.parametrize("policy", [*COMPRESSION_POLICIES.names(), "nonsense"])
async def test_concurrent_searches_get_the_same_texts_as_alone(make, wanted, elsewhere, policy):
    """Two of them have equal texts, so that each uses the drafts of the other."""

    async def search(engine, account):
        root = engine.open("say yes", account)
        (reply,) = await engine.generate([ask(root)], account)
        for handle in (root, *(completion.handle for completion in reply)):
            engine.release(handle)
        return written(reply)

    with make(compress=POLICIES[policy], lossless=Lossless(horizon=7)) as engine:
        accounts = [Account() for _ in range(3)]
        others = [grow_elsewhere(engine, n) for n in range(2)]
        *found, one, two = await asyncio.gather(*(search(engine, account) for account in accounts), *others)
        held(engine, [])
    assert found == [wanted[0][0]] * 3
    assert [one, two] == elsewhere
    for account in accounts:
        verified = account.ledger.verified
        assert verified.drafted == verified.accepted + verified.rejected > 0


async def grow_elsewhere(engine, n):
    account = Account()
    root = engine.open(PROMPTS[n], account)
    (reply,) = await engine.generate([ask(root, n, max_tokens=25)], account)
    for handle in (root, *(completion.handle for completion in reply)):
        engine.release(handle)
    return written(reply)
