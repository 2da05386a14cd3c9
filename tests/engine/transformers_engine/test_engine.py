"""The contract of an engine, on tiny random models."""

import pytest
import torch

from rksc_tot.core.errors import CacheError, ConfigError, ContextOverflow, EngineError
from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account, Engine, GenerateRequest, LabelRequest, Sampling
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import llama, mistral
from tests.engine.requests import HOT, LABELS, PROMPT, ask, grow, texts


def test_the_engine_has_every_call_of_the_contract(engine):
    assert isinstance(engine, Engine)


async def test_every_branch_is_in_exactly_one_completion(engine):
    account = Account()
    (found,) = await engine.generate([ask(engine.open(PROMPT, account), k=16)], account)
    assert sorted(b for c in found for b in c.branches) == list(range(16))
    assert [c.branches[0] for c in found] == sorted(c.branches[0] for c in found)
    assert len({c.tokens for c in found}) == len(found)


async def test_the_text_of_a_branch_does_not_depend_on_other_branches(engine):
    account = Account()
    (together,) = await engine.generate([ask(engine.open(PROMPT, account), k=8)], account)
    for completion in together:
        for branch in completion.branches:
            engine.clear()
            stream = stream_keys([branch], "s")
            alone = GenerateRequest(engine.open(PROMPT, account), stream, HOT, 10, ("\n",))
            ((single,),) = await engine.generate([alone], account)
            assert single.tokens == completion.tokens
            assert single.logprobs == pytest.approx(completion.logprobs, abs=1e-4)


async def test_expanding_twice_gives_the_same_text_beside_other_requests(engine):
    account = Account()
    root, first, _ = await grow(engine, account)
    target = first[0].handle
    (once,) = await engine.generate([ask(target, "x")], account)
    (again,) = await engine.generate([ask(target, "x")], account)
    crowd = [ask(c.handle, f"y{i}", 5) for i, c in enumerate(first)] + [ask(root, "z", 9)]
    *_, beside = await engine.generate([*crowd, ask(target, "x")], account)
    assert texts(once) == texts(again) == texts(beside)


async def test_logprobs_equal_those_of_a_fresh_forward_pass(engine):
    account = Account()
    _, _, second = await grow(engine, account)
    for completion in second:
        path = completion.handle.tokens
        logprobs = engine.forward.plain(path).log_softmax(-1)
        n = len(completion.tokens)
        fresh = [float(logprobs[i - 1, path[i]]) for i in range(len(path) - n, len(path))]
        drawn = n - (completion.finish == "eos")  # the last one stands for the end-of-text
        assert completion.logprobs[:drawn] == pytest.approx(fresh[:drawn], abs=1e-4)


async def test_while_resident_no_token_is_computed_twice(engine):
    account = Account()
    _, first, second = await grow(engine, account, k=12)
    await engine.label([LabelRequest(c.handle, "try so", LABELS) for c in [*first, *second]], account)
    paths = {tuple(c.handle.tokens[:n]) for c in [*first, *second] for n in range(1, c.handle.length + 1)}
    ledger = account.ledger
    assert ledger.prefill_tokens == ledger.distinct_tokens == len(paths)
    assert ledger.recomputed_tokens == 0
    assert ledger.context_computed < ledger.context_tokens


async def test_verification_leaves_nothing_in_the_cache(engine):
    account = Account()
    _, first, second = await grow(engine, account)
    await engine.label([LabelRequest(c.handle, "try so", LABELS) for c in second], account)  # stores pending tokens
    segments = {id(s): (list(s.tokens), list(s.kv.slots)) for s in engine.cache.segments()}
    used = sorted(slot for _, slots in segments.values() for slot in slots)
    keys, values = engine.forward.arena.read(0)
    before = keys[:, used].clone(), values[:, used].clone()
    await engine.label([LabelRequest(c.handle, "try 1+2 1-2 so", LABELS) for c in [*first, *second]], account)
    assert {id(s): (list(s.tokens), list(s.kv.slots)) for s in engine.cache.segments()} == segments
    keys, values = engine.forward.arena.read(0)
    assert torch.equal(keys[:, used], before[0])
    assert torch.equal(values[:, used], before[1])


async def test_label_probabilities_equal_those_of_a_fresh_forward_pass(engine):
    account = Account()
    _, first, _ = await grow(engine, account)
    scores = await engine.label([LabelRequest(c.handle, "try so", LABELS) for c in first], account)
    tokenizer = engine.tokenizer
    ids = [tokenizer.convert_tokens_to_ids(" " + label) for label in LABELS]
    for completion, score in zip(first, scores, strict=True):
        path = completion.handle.tokens + tokenizer.encode("try so")
        fresh = engine.forward.plain(path)[-1].double().softmax(-1)[ids]
        assert score.outside == pytest.approx(1 - float(fresh.sum()), abs=1e-5)
        assert list(score.probabilities.values()) == pytest.approx((fresh / fresh.sum()).tolist(), abs=1e-4)


@pytest.mark.parametrize("rows", [1, 3, 2048])
async def test_prompts_are_prefilled_in_chunks_without_a_difference(rows):
    tokenizer = build_tokenizer()
    with TransformersEngine(llama(len(tokenizer)), tokenizer, max_batch_tokens=rows) as engine:
        account = Account()
        (found,) = await engine.generate([ask(engine.open("steps " + "4 5 6 " * 20, account))], account)
    with TransformersEngine(llama(len(tokenizer)), tokenizer) as engine:
        (whole,) = await engine.generate([ask(engine.open("steps " + "4 5 6 " * 20, account))], account)
    assert texts(found) == texts(whole)


async def test_an_evicted_path_is_recomputed_and_nothing_changes():
    tokenizer = build_tokenizer()

    async def run(engine):
        account = Account()
        root = engine.open(PROMPT, account)
        (first,) = await engine.generate([ask(root, "a")], account)
        seen = [texts(first)]
        for name in ("b", "again"):
            for i, completion in enumerate(first):
                (found,) = await engine.generate([ask(completion.handle, f"{name}{i}", 3)], account)
                seen.append(texts(found))
        engine.check_integrity()
        return seen, account.ledger, engine.usage.kv_bytes

    with TransformersEngine(llama(len(tokenizer)), tokenizer) as engine:
        roomy, _, size = await run(engine)
        assert engine.cache.eviction_log.tokens == 0
    budget = size // 3
    with TransformersEngine(llama(len(tokenizer)), tokenizer, kv_budget=budget, max_batch_tokens=16) as engine:
        tight, ledger, _ = await run(engine)
        assert engine.usage.kv_bytes <= budget
        assert engine.cache.eviction_log.tokens > 0
    assert tight == roomy
    assert ledger.peak_kv_bytes <= budget


async def test_when_room_is_short_requests_wait_and_nothing_changes():
    tokenizer = build_tokenizer()

    async def run(engine):
        account = Account()
        root = engine.open(PROMPT, account)
        (first,) = await engine.generate([ask(root, "a", 8)], account)
        twice = [ask(c.handle, f"b{i}", 4) for i, c in enumerate(first)] * 2
        second = await engine.generate(twice, account)
        leaves = [c.handle for found in second for c in found]
        scores = await engine.label([LabelRequest(leaf, "try 1+2 1-2 so", LABELS) for leaf in leaves], account)
        engine.check_integrity()
        values = [round(p, 4) for s in scores for p in s.probabilities.values()]
        return [texts(f) for f in (first, *second)], values, account.ledger.peak_kv_bytes

    with TransformersEngine(llama(len(tokenizer)), tokenizer) as engine:
        roomy = await run(engine)
    budget = roomy[2] // 5
    with TransformersEngine(llama(len(tokenizer)), tokenizer, kv_budget=budget) as engine:
        tight = await run(engine)
        assert engine.cache.eviction_log.tokens > 0
    assert tight[:2] == roomy[:2]
    assert tight[2] <= budget


async def test_branches_that_do_not_fit_the_kv_budget_fail_with_an_explanation():
    tokenizer = build_tokenizer()
    with TransformersEngine(llama(len(tokenizer)), tokenizer, kv_budget=10_000) as engine:
        account = Account()
        root = engine.open(PROMPT, account)
        with pytest.raises(
            CacheError, match=r"1 more token does not fit the KV budget.*; the job may still write \d+ bytes"
        ):
            await engine.generate([ask(root, k=32, max_tokens=50)], account)
        engine.check_integrity()
        assert len(await engine.generate([ask(root, k=1, max_tokens=2)], account)) == 1


async def test_the_token_budget_is_never_exceeded(engine):
    for budget in (1, 7, 20):
        account = Account(tokens_left=budget)
        (found,) = await engine.generate([ask(engine.open(PROMPT, account), k=6, max_tokens=9)], account)
        assert account.ledger.tokens_sampled == budget
        assert account.tokens_left == 0
        assert sorted(b for c in found for b in c.branches) == list(range(6))
        assert any(c.finish == "budget" for c in found)


async def test_no_pass_starts_after_the_deadline(engine):
    account = Account(deadline=0.0)
    (found,) = await engine.generate([ask(engine.open(PROMPT, account))], account)
    assert [c.finish for c in found] == ["budget"]
    assert await engine.label([LabelRequest(found[0].handle, "try so", LABELS)], account) == [None]
    assert account.ledger.tokens_sampled == account.ledger.forward_passes == 0


async def test_a_text_cut_off_by_a_limit_has_that_finish(engine):
    account = Account()
    (found,) = await engine.generate([ask(engine.open(PROMPT, account), max_tokens=3, stop=())], account)
    assert {c.finish for c in found} <= {"length", "eos"}
    assert all(len(c.tokens) <= 3 for c in found)


async def test_greedy_ignores_the_stream(engine):
    account = Account()
    (found,) = await engine.generate([ask(engine.open(PROMPT, account), sampling=Sampling(temperature=0))], account)
    assert len(found) == 1
    assert found[0].branches == tuple(range(6))


async def test_a_proposal_leaves_nothing_on_the_path(engine):
    account = Account()
    root = engine.open(PROMPT, account)
    (found,) = await engine.generate([ask(root, k=2, suffix="try so", stop=())], account)
    assert all(c.handle is None for c in found)
    assert account.ledger.proposal_tokens > 0
    assert account.ledger.prefill_tokens == root.length == account.ledger.distinct_tokens
    assert sum(len(s.tokens) for s in engine.cache.segments()) == root.length


async def test_extending_by_text_equals_one_longer_prompt(engine):
    account = Account()
    root = engine.open(PROMPT, account)
    step = "10 - 4 = 6 (left: 5 6 6)\n"
    assert engine.extend(root, step).tokens == engine.open(PROMPT + step, account).tokens


async def test_releasing_everything_empties_the_cache(engine):
    account = Account()
    root, first, second = await grow(engine, account)
    for handle in [root, *(c.handle for c in [*first, *second])]:
        engine.release(handle)
    engine.clear()
    assert engine.usage.kv_bytes == 0
    assert list(engine.cache.segments()) == []
    with pytest.raises(EngineError, match="released"):
        engine.release(root)
    with pytest.raises(EngineError, match="released"):
        await engine.generate([ask(root)], account)


async def test_a_prompt_longer_than_the_context_is_refused(engine):
    with pytest.raises(ContextOverflow, match="context holds 256"):
        engine.open("steps" + " 4" * 300, Account())


async def test_a_path_never_outgrows_the_context(engine):
    account = Account()
    root = engine.extend(engine.open(PROMPT, account), " 4" * 245)
    (found,) = await engine.generate([ask(root, max_tokens=100, stop=())], account)
    assert all(c.handle.length <= 256 for c in found)


def test_settings_out_of_range_name_the_value():
    tokenizer = build_tokenizer()
    for wrong in (0, -1, "x", 2.5, True, None):
        with pytest.raises(ConfigError, match=f"max_batch_tokens: should be .*, not {wrong!r}"):
            TransformersEngine(llama(len(tokenizer)), tokenizer, max_batch_tokens=wrong)
    with pytest.raises(ConfigError, match="lossless is 'no' - give True, False or a Lossless object"):
        TransformersEngine(llama(len(tokenizer)), tokenizer, compress="streaming", lossless="no")
    with pytest.raises(ConfigError, match="KV budget of 10 bytes"):
        TransformersEngine(llama(len(tokenizer)), tokenizer, kv_budget=10)


async def test_a_window_smaller_than_the_path_is_kept_in_every_branch():
    tokenizer = build_tokenizer()
    with TransformersEngine(mistral(len(tokenizer)), tokenizer) as engine:
        account = Account()
        _, _, second = await grow(engine, account)
        for completion in second:
            path = completion.handle.tokens
            logprobs = engine.forward.plain(path).log_softmax(-1)
            fresh = [float(logprobs[i - 1, path[i]]) for i in range(len(path) - len(completion.tokens), len(path))]
            drawn = len(fresh) - (completion.finish == "eos")  # the last one stands for the end-of-text
            assert completion.logprobs[:drawn] == pytest.approx(fresh[:drawn], abs=1e-4)


@pytest.mark.parametrize("keep", [True, False])
async def test_a_thought_that_ended_its_text_is_closed_like_any_other(engine, keep):
    account = Account()
    root = engine.open(PROMPT, account)
    engine._eos = frozenset(range(3, 200))  # many tokens end the text
    (found,) = await engine.generate([ask(root, k=32, max_tokens=6, stop=("\n", "x"), keep_stop=keep)], account)
    ended = [c for c in found if c.finish == "eos"]
    assert ended
    for completion in ended:
        text = engine.tokenizer.decode(completion.tokens)
        assert text == completion.text + "\n" * keep
        assert len(completion.logprobs) == len(completion.tokens)
        assert all(logprob < 0 for logprob in completion.logprobs)
        assert completion.handle.tokens == root.tokens + list(completion.tokens)
