"""A prompt variant on reused KV of the prompt."""

import asyncio
import threading

import pytest
import torch
import transformers as t

from rksc_tot.core.errors import CacheError, EngineError, UnsupportedModel
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account, GenerateRequest, Sampling
from rksc_tot.engine.model import hf_compat as compat
from rksc_tot.engine.transformers_engine.kv_splice import overlap
from rksc_tot.policies.asks import PromptReuse
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import PER_TOKEN, SHAPE, byte_tokenizer, llama
from tests.patience import PATIENCE

PROBLEM = "A shed holds 7 rakes and 12 spades; 5 are lent out. "
REFERENCE, BRANCH = f"Solve: {PROBLEM}Answer", f"Here is a longer question. {PROBLEM}Show it"
ALL = {"threshold": None}


def share(engine, rule, prompt=BRANCH, reference=REFERENCE, account=None, key=0):
    """Open a reference and a branch; returns reference handle, branch handle, verdict."""
    account = account or Account()
    lender = engine.open(reference, account)
    return lender, *asyncio.run(engine.open_variant(prompt, lender, rule, account, key))


def text(engine, handle, tokens=8):
    request = GenerateRequest(handle, (1,), Sampling(temperature=0), tokens)
    [[done]] = asyncio.run(engine.generate([request], Account()))
    engine.release(done.handle)
    return done.tokens


def by_hand(model, reference, branch, shared):
    """Last logits of the branch on reused KV, computed with transformers and Llama's own formula."""
    half = model.model.rotary_emb.inv_freq
    angle = (shared.target - shared.source) * torch.cat([half, half])

    def turn(keys):
        a, b = keys.chunk(2, -1)
        return keys * angle.cos() + torch.cat([-b, a], -1) * angle.sin()

    name, end = compat.cache_keyword(model), shared.target + shared.length
    with torch.no_grad():
        lent, cache = t.DynamicCache(), t.DynamicCache()
        model(input_ids=torch.tensor([reference]), use_cache=True, **{name: lent})
        model(input_ids=torch.tensor([branch[: shared.target]]), use_cache=True, **{name: cache})
        for layer, (source, target) in enumerate(zip(lent.layers, cache.layers, strict=True)):
            run = slice(shared.source, shared.source + shared.length)
            cache.update(turn(source.keys[:, :, run]), source.values[:, :, run], layer)
            assert target.keys.shape[2] == end
        positions = torch.arange(end, len(branch))[None]
        return model(
            input_ids=torch.tensor([branch[end:]]), position_ids=positions, use_cache=True, **{name: cache}
        ).logits[0, -1]


@pytest.fixture
def one_layer():
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    config = t.LlamaConfig(vocab_size=len(tokenizer), **{**SHAPE, "num_hidden_layers": 1})
    with TransformersEngine(t.LlamaForCausalLM(config).eval(), tokenizer) as engine:
        yield engine
        engine.check_integrity()


def test_reused_kv_is_exact_in_a_model_of_one_layer(one_layer):
    _, branch, verdict = share(one_layer, PromptReuse(**ALL, recompute=0, audit=1))
    assert verdict.kept
    assert verdict.reused >= len(PROBLEM)
    assert verdict.audit.same
    assert verdict.audit.kl < 1e-8
    plain = one_layer.forward.plain(branch.tokens)[-1]
    assert torch.allclose(branch.segment.logits, plain, atol=1e-4)


@pytest.mark.parametrize("route", ["fast", "mask"])
@pytest.mark.parametrize("recompute", [0, 4])
@pytest.mark.parametrize("max_rows", [2048, 5])
def test_reused_kv_equals_kv_moved_by_hand(recompute, route, max_rows):
    tokenizer = byte_tokenizer()
    with TransformersEngine(llama(len(tokenizer)), tokenizer, max_batch_tokens=max_rows) as engine:
        engine.forward.take(route)
        lender, branch, verdict = share(engine, PromptReuse(**ALL, recompute=recompute))
        shared = overlap(lender.tokens, branch.tokens).after(recompute)
        assert (verdict.exact, verdict.reused) == (shared.head, shared.length)
        assert verdict.computed == branch.length - shared.head - shared.length
        wanted = by_hand(engine.model, lender.tokens, branch.tokens, shared)
        assert torch.allclose(branch.segment.logits, wanted, atol=1e-4)
        plain = engine.forward.plain(branch.tokens)[-1]
        assert not torch.allclose(wanted, plain, atol=1e-2)  # an approximation, or this test says nothing


def test_no_exact_request_reaches_reused_kv(byte_engine):
    _, branch, _ = share(byte_engine, PromptReuse(**ALL))
    approximate = branch.segment.logits.clone()
    exact = byte_engine.open(BRANCH, Account())
    assert exact.tokens == branch.tokens
    text(byte_engine, exact)
    plain = byte_engine.forward.plain(exact.tokens)[-1]
    assert torch.allclose(exact.segment.logits, plain, atol=1e-4)
    text(byte_engine, branch)
    assert torch.equal(branch.segment.logits, approximate)
    assert branch.segment.lineage()[0] is not exact.segment.lineage()[0]


def test_a_kept_branch_stays_resident_while_it_is_held(byte_engine):
    lender, branch, _ = share(byte_engine, PromptReuse(**ALL))
    byte_engine.clear()
    with pytest.raises(CacheError):
        byte_engine.cache.room.make_room(byte_engine.cache.residency.pool.limit)
    assert byte_engine.cache.residency.missing(lender.segment)
    assert byte_engine.cache.residency.missing(branch.segment) == []
    byte_engine.release(branch)
    byte_engine.clear()
    assert not branch.segment.kv.slots


def test_a_rejected_branch_leaves_nothing_and_is_exact(byte_engine):
    account = Account()
    lender, branch, verdict = share(byte_engine, PromptReuse(threshold=1e9), account=account)
    assert not verdict.kept
    assert "needs an audit" in verdict.why
    assert verdict.reused == 0
    assert byte_engine.cache.residency.pool.used == lender.length
    assert account.ledger.prompt_reuse.acted == 0
    text(byte_engine, branch)
    assert torch.allclose(branch.segment.logits, byte_engine.forward.plain(branch.tokens)[-1], atol=1e-4)


def test_reuse_is_not_tried_with_too_few_common_tokens(byte_engine):
    account = Account()
    _, _, verdict = share(byte_engine, PromptReuse(**ALL, least=500), account=account)
    assert not verdict.kept
    assert "500" in verdict.why
    assert account.ledger.prefill_tokens == 0


def test_a_resident_prompt_reuses_nothing(byte_engine):
    exact = byte_engine.open(BRANCH, Account())
    text(byte_engine, exact)
    _, branch, verdict = share(byte_engine, PromptReuse(**ALL))
    assert not verdict.kept
    assert "resident already" in verdict.why
    assert branch.segment is exact.segment


def test_reused_kv_is_not_reused_again(byte_engine):
    account = Account()
    _, branch, _ = share(byte_engine, PromptReuse(**ALL))
    other = f"Once more. {PROBLEM}So"
    _, verdict = asyncio.run(byte_engine.open_variant(other, branch, PromptReuse(**ALL), account))
    assert not verdict.kept
    assert "reused KV" in verdict.why
    assert account.ledger.prefill_tokens == 0


def test_the_ledger_counts_reuse_and_audits(byte_engine):
    account = Account()
    _, branch, verdict = share(byte_engine, PromptReuse(**ALL, audit=1), account=account)
    record = account.ledger.prompt_reuse
    exact = byte_engine.forward.plain(branch.tokens)[-1].double().log_softmax(-1)
    shared = branch.segment.logits.double().log_softmax(-1)
    assert record.kl == pytest.approx(float((exact.exp() * (exact - shared)).sum()), rel=1e-3)
    assert (record.acted, record.audited, record.tokens) == (1, 1, verdict.reused)
    assert record.top1 == (exact.argmax() == shared.argmax())
    assert record.flips == record.audited - record.top1


def test_an_unaudited_branch_computes_only_its_own_tokens(byte_engine):
    account = Account()
    lender, _, verdict = share(byte_engine, PromptReuse(**ALL, audit=0), account=account)
    looked = account.ledger.recomputed_tokens  # the lender's last token, for its hidden states
    assert looked <= 1
    assert account.ledger.prefill_tokens == lender.length + looked + verdict.computed


def test_audits_are_drawn_by_key_alone(byte_engine):
    def audited(key):
        _, branch, verdict = share(byte_engine, PromptReuse(**ALL, audit=0.5), key=key)
        byte_engine.release(branch)
        byte_engine.clear()
        return verdict.audit is not None

    drawn = [audited(key) for key in range(12)]
    assert drawn == [audited(key) for key in range(12)]
    assert 0 < sum(drawn) < 12


def test_kv_that_is_not_a_number_is_rejected_with_the_reason(byte_engine):
    lender = byte_engine.open(REFERENCE, Account())
    text(byte_engine, lender)
    with torch.inference_mode():
        byte_engine.forward.arena.values[1][:, lender.segment.kv.slots[20]] = float("nan")
    _, _, verdict = share(byte_engine, PromptReuse(**ALL))
    assert not verdict.kept
    assert "NaN" in verdict.why


def test_a_failed_pass_leaves_no_kv_of_the_branch(byte_engine, monkeypatch):
    sharing = byte_engine._reuser
    sharing.rotation()
    lender = byte_engine.open(REFERENCE, Account())
    text(byte_engine, lender)
    before = byte_engine.cache.residency.pool.used
    monkeypatch.setattr("rksc_tot.engine.transformers_engine.prompt_reuse.compute_rest", lambda *_: 1 / 0)
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        asyncio.run(byte_engine.open_variant(BRANCH, lender, PromptReuse(**ALL), Account()))
    assert byte_engine.cache.residency.pool.used == before
    byte_engine.check_integrity()


@pytest.mark.parametrize("started", [False, True])
def test_a_cancelled_request_leaves_no_kv_of_the_branch(byte_engine, monkeypatch, started):
    sharing = byte_engine._reuser
    sharing.rotation()
    lender = byte_engine.open(REFERENCE, Account())
    text(byte_engine, lender)
    before = byte_engine.cache.residency.pool.used
    running, go_on = threading.Event(), threading.Event()
    whole = sharing.open

    def slow(*args):
        running.set()
        go_on.wait(PATIENCE)
        return whole(*args)

    monkeypatch.setattr(sharing, "open", slow)

    async def cancelled():
        request = asyncio.create_task(byte_engine.open_variant(BRANCH, lender, PromptReuse(**ALL), Account()))
        while started and not running.is_set():
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        go_on.set()
        byte_engine.engine_thread.submit(int).result()  # whatever was running has ended

    asyncio.run(cancelled())
    byte_engine.clear()
    assert byte_engine.cache.residency.pool.used <= before
    assert [segment for segment in byte_engine.cache.segments() if segment.handles] == [lender.segment]


def test_without_room_for_both_prompts_the_variant_is_computed_alone():
    tokenizer = byte_tokenizer()
    with TransformersEngine(llama(len(tokenizer)), tokenizer) as engine:
        per_token = engine.forward.arena.bytes_per_row or PER_TOKEN
        rows = len(tokenizer(BRANCH).input_ids) + 12
    with TransformersEngine(llama(len(tokenizer)), tokenizer, kv_budget=rows * per_token) as engine:
        _, branch, verdict = share(engine, PromptReuse(**ALL))
        assert not verdict.kept
        assert "KV budget" in verdict.why
        text(engine, branch)
        engine.check_integrity()


def test_without_hidden_states_only_sigma_is_missing(byte_engine):
    byte_engine.forward.lens = None
    _, branch, verdict = share(byte_engine, PromptReuse(**ALL))
    assert verdict.kept
    assert verdict.signals.sigma is None
    byte_engine.release(branch)
    _, _, verdict = share(byte_engine, PromptReuse(gate="sigma", threshold=0.5))
    assert "hidden states" in verdict.why


def test_sigma_compares_the_last_tokens_of_branch_and_reference(byte_engine):
    same_end = f"Solve:  {PROBLEM}Answer"  # one space more
    _, _, close = share(byte_engine, PromptReuse(**ALL, recompute=0), prompt=same_end)
    _, _, apart = share(byte_engine, PromptReuse(**ALL))
    assert -1 <= apart.signals.sigma < close.signals.sigma <= 1


@pytest.mark.parametrize("cancelled", [False, True])
async def test_an_abandoned_variant_leaves_the_books_balanced(cancelled):
    import asyncio

    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_embd=48, n_layer=2, n_head=4, n_positions=128)
    ).eval()
    with TransformersEngine(model, tokenizer) as engine:
        account = Account()
        reference, same = engine.open("steps 4 5 6 10\n", account), engine.open("solve 4 5 6 10\n", account)
        rule = PromptReuse(threshold=None, least=2)
        task = asyncio.ensure_future(engine.open_variant("solve 4 5 6 10\n", reference, rule, account))
        if cancelled:
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises((UnsupportedModel, asyncio.CancelledError)):
            await task
        await asyncio.sleep(0.05)
        engine.check_integrity()
        for handle in (reference, same):
            engine.release(handle)
        engine.check_integrity()


async def test_reused_kv_fills_no_more_than_its_part_of_the_budget():
    tokenizer = build_tokenizer()
    rule = PromptReuse(threshold=None, least=2)
    for tokens, kept in ((100, True), (20, False)):
        with TransformersEngine(llama(len(tokenizer)), tokenizer) as engine:
            size = engine.bytes_per_token
        with TransformersEngine(llama(len(tokenizer)), tokenizer, kv_budget=tokens * size) as engine:
            account = Account()
            reference = engine.open("steps 4 5 6 10\n", account)
            handle, verdict = await engine.open_variant("solve 4 5 6 10\n", reference, rule, account)
            assert verdict.kept is kept
            assert kept or "may not be evicted" in verdict.why
            for given in (reference, handle):
                engine.release(given)
            engine.check_integrity()
