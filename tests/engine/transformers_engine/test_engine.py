"""What an engine promises a search, tried on tiny random models."""

import asyncio
import threading

import pytest
import torch

from rksc_tot.core.errors import CacheError, ConfigError, ContextOverflow, EngineError
from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account, Engine, GenerateRequest, LabelRequest, Sampling
from rksc_tot.policies.early_exit.cgee import RivalStop
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import byte_tokenizer, llama, mistral

PROMPT = "steps 4 5 6 10\n"
LABELS = ("sure", "likely", "impossible")
HOT = Sampling(temperature=0.8)


def ask(handle, name="s", k=6, max_tokens=10, sampling=HOT, stop=("\n",), **options):
    return GenerateRequest(handle, stream_keys(range(k), name), sampling, max_tokens, stop, **options)


def texts(completions):
    return [(c.text, c.tokens, c.branches, c.finish) for c in completions]


async def grow(engine, account, k=6):
    """A three-level tree; returns all handles by level."""
    root = engine.open(PROMPT, account)
    (first,) = await engine.generate([ask(root, "a", k)], account)
    second = await engine.generate([ask(c.handle, f"b{i}", 3) for i, c in enumerate(first)], account)
    return root, first, [c for found in second for c in found]


def test_satisfies_the_contract(engine):
    assert isinstance(engine, Engine)


async def test_every_branch_stands_in_exactly_one_completion(engine):
    account = Account()
    (found,) = await engine.generate([ask(engine.open(PROMPT, account), k=16)], account)
    assert sorted(b for c in found for b in c.branches) == list(range(16))
    assert [c.branches[0] for c in found] == sorted(c.branches[0] for c in found)
    assert len({c.tokens for c in found}) == len(found)


async def test_a_branch_writes_what_it_would_write_alone(engine):
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


async def test_expanding_twice_gives_identical_text_in_any_company(engine):
    account = Account()
    root, first, _ = await grow(engine, account)
    target = first[0].handle
    (once,) = await engine.generate([ask(target, "x")], account)
    (again,) = await engine.generate([ask(target, "x")], account)
    crowd = [ask(c.handle, f"y{i}", 5) for i, c in enumerate(first)] + [ask(root, "z", 9)]
    *_, beside = await engine.generate([*crowd, ask(target, "x")], account)
    assert texts(once) == texts(again) == texts(beside)


async def test_logprobs_are_those_of_a_fresh_forward_pass(engine):
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


async def test_verification_leaves_no_trace(engine):
    account = Account()
    _, first, second = await grow(engine, account)
    await engine.label([LabelRequest(c.handle, "try so", LABELS) for c in second], account)  # stores pending tokens
    segments = {id(s): (list(s.tokens), list(s.slots)) for s in engine.cache.segments()}
    used = sorted(slot for _, slots in segments.values() for slot in slots)
    keys, values = engine.forward.arena.read(0)
    before = keys[:, used].clone(), values[:, used].clone()
    await engine.label([LabelRequest(c.handle, "try 1+2 1-2 so", LABELS) for c in [*first, *second]], account)
    assert {id(s): (list(s.tokens), list(s.slots)) for s in engine.cache.segments()} == segments
    keys, values = engine.forward.arena.read(0)
    assert torch.equal(keys[:, used], before[0])
    assert torch.equal(values[:, used], before[1])


async def test_label_probabilities_are_those_of_a_fresh_forward_pass(engine):
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
        assert engine.cache.evicted_tokens == 0
    budget = size // 3
    with TransformersEngine(llama(len(tokenizer)), tokenizer, kv_budget=budget, max_batch_tokens=16) as engine:
        tight, ledger, _ = await run(engine)
        assert engine.usage.kv_bytes <= budget
        assert engine.cache.evicted_tokens > 0
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
        assert engine.cache.evicted_tokens > 0
    assert tight[:2] == roomy[:2]
    assert tight[2] <= budget


async def test_branches_that_cannot_fit_the_budget_end_in_a_sentence():
    tokenizer = build_tokenizer()
    with TransformersEngine(llama(len(tokenizer)), tokenizer, kv_budget=10_000) as engine:
        account = Account()
        root = engine.open(PROMPT, account)
        with pytest.raises(
            CacheError, match=r"1 more token does not fit the KV budget.*; they may still write \d+ bytes"
        ):
            await engine.generate([ask(root, k=32, max_tokens=50)], account)
        engine.check_integrity()
        assert len(await engine.generate([ask(root, k=1, max_tokens=2)], account)) == 1


async def test_the_token_budget_is_never_exceeded_by_one(engine):
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


async def test_truncated_is_not_finished(engine):
    account = Account()
    (found,) = await engine.generate([ask(engine.open(PROMPT, account), max_tokens=3, stop=())], account)
    assert {c.finish for c in found} <= {"length", "eos"}
    assert all(len(c.tokens) <= 3 for c in found)


async def test_greedy_ignores_the_stream(engine):
    account = Account()
    (found,) = await engine.generate([ask(engine.open(PROMPT, account), sampling=Sampling(temperature=0))], account)
    assert len(found) == 1
    assert found[0].branches == tuple(range(6))


async def test_proposals_are_scratch(engine):
    account = Account()
    root = engine.open(PROMPT, account)
    (found,) = await engine.generate([ask(root, k=2, suffix="try so", stop=())], account)
    assert all(c.handle is None for c in found)
    assert account.ledger.proposal_tokens > 0
    assert account.ledger.prefill_tokens == root.length == account.ledger.distinct_tokens
    assert sum(len(s.tokens) for s in engine.cache.segments()) == root.length


async def test_extending_by_text_equals_writing_it_at_once(engine):
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


async def test_a_failing_pass_leaves_the_books_balanced(engine, monkeypatch):
    account = Account()
    root, first, _ = await grow(engine, account)
    with monkeypatch.context() as patch:
        patch.setattr(engine.forward.model, "forward", lambda **_: 1 / 0)
        with pytest.raises(EngineError, match="division by zero"):
            await engine.generate([ask(root, "new")], account)
    engine.check_integrity()
    (found,) = await engine.generate([ask(first[0].handle, "new")], account)
    assert found


async def test_one_search_failing_does_not_end_the_others(engine):
    account = Account()
    root = engine.open(PROMPT, account)
    long = engine.extend(root, " 4" * 230)
    good, bad = await asyncio.gather(
        engine.generate([ask(root)], account),
        engine.label([LabelRequest(long, "try 1+2" * 20, LABELS)], account),
        return_exceptions=True,
    )
    assert isinstance(bad, ContextOverflow)
    assert good[0]


async def test_cancelling_a_request_frees_what_it_pinned(engine):
    account = Account()
    root = engine.open(PROMPT, account)
    task = asyncio.create_task(engine.generate([ask(root, k=8, max_tokens=200, stop=())], account))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    engine.release(root)
    engine.clear()
    assert engine.usage.kv_bytes == 0


def test_threads_with_event_loops_of_their_own_share_an_engine(engine):
    results = {}

    def search(name):
        account = Account()

        async def run():
            root = engine.open(PROMPT, account)
            return await engine.generate([ask(root, name)], account)

        results[name] = texts(asyncio.run(run())[0])

    threads = [threading.Thread(target=search, args=(n,)) for n in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in "abcd":
        engine.clear()
        together = results[name]
        search(name)
        assert results[name] == together


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
    with pytest.raises(ConfigError, match="lossless is 'no' - it takes True, False or a Lossless object"):
        TransformersEngine(llama(len(tokenizer)), tokenizer, compress="streaming", lossless="no")
    with pytest.raises(ConfigError, match="KV budget of 10 bytes"):
        TransformersEngine(llama(len(tokenizer)), tokenizer, kv_budget=10)


async def test_a_closed_engine_says_so(engine):
    root = engine.open(PROMPT, Account())
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        await engine.generate([ask(root)], Account())


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


# -- text ----------------------------------------------------------------------------------------------------------------


async def test_text_is_never_cut_inside_a_character(byte_engine):
    account = Account()
    root = byte_engine.open("é", account)
    (found,) = await byte_engine.generate([ask(root, k=64, max_tokens=5, stop=())], account)
    for completion in found:
        assert completion.text == byte_engine.tokenizer.decode(completion.tokens)
        if completion.finish == "length" and "�" not in completion.text:
            assert len(completion.text.encode()) >= len(completion.tokens)


@pytest.mark.parametrize("keep", [True, False])
async def test_kv_ends_where_the_kept_text_ends(byte_engine, keep):
    account = Account()
    root = byte_engine.open("say", account)
    tokenizer = byte_engine.tokenizer
    common = [tokenizer.decode([t]) for t in range(40, 60)]
    (found,) = await byte_engine.generate([ask(root, k=64, max_tokens=12, stop=tuple(common), keep_stop=keep)], account)
    stopped = [c for c in found if c.finish == "stop"]
    assert stopped
    for completion in stopped:
        kept = tokenizer.decode(completion.tokens)
        stop = kept.removeprefix(completion.text)
        assert stop in (common if keep else [""])
        assert completion.handle.tokens == root.tokens + list(completion.tokens)


async def test_chat_messages_are_closed_and_followed_by_the_question(byte_engine):
    account = Account()
    root = byte_engine.open([{"role": "user", "content": "hi"}], account)
    tokenizer = byte_engine.tokenizer
    assert tokenizer.decode(root.tokens) == "<s>[user]hi\n[assistant]"
    assert root.tokens.count(tokenizer.bos_token_id) == 1
    seen = []
    walk = byte_engine.cache.walk
    byte_engine.cache.walk = lambda at, tokens: seen.append(list(tokens)) or walk(at, tokens)
    question = [{"role": "user", "content": "sure?"}]
    await byte_engine.label([LabelRequest(root, question, ("yes", "no"))], account)
    assert tokenizer.decode(seen[-1]) == "\n[user]sure?\n[assistant]"


def test_chat_without_a_template_is_refused_with_a_way_out():
    tokenizer = byte_tokenizer(chat=False)
    with (
        TransformersEngine(llama(len(tokenizer)), tokenizer) as engine,
        pytest.raises(EngineError, match="no chat template - return a string"),
    ):
        engine.open([{"role": "user", "content": "hi"}], Account())


async def test_an_empty_prompt_or_question_is_refused(byte_engine):
    with pytest.raises(EngineError, match="prompt is empty"):
        byte_engine.open("", Account())
    root = byte_engine.open("a", Account())
    with pytest.raises(EngineError, match="question is empty"):
        await byte_engine.label([LabelRequest(root, "", ("yes", "no"))], Account())


STOPS = tuple("57")


class WhoeverEndsFirst(RivalStop):
    def decisive(self, ended, running):
        return bool(ended and running)


async def test_rivals_stop_when_a_branch_that_has_ended_is_decisive_and_only_then(engine):
    account = Account()
    root = engine.open(PROMPT, account)
    (full,) = await engine.generate([ask(root, "r", k=12, max_tokens=40, stop=STOPS)], account)
    ended = min(len(c.tokens) for c in full if c.finish == "stop")
    (cut,) = await engine.generate(
        [ask(root, "r", k=12, max_tokens=40, stop=STOPS, rivals=WhoeverEndsFirst(confidence=0, margin=0))], account
    )
    kept = {c.tokens for c in cut if c.finish != "rival"}
    assert kept <= {c.tokens for c in full}
    assert all(len(c.tokens) >= ended for c in cut)
    assert sorted(b for c in cut for b in c.branches) == list(range(12))
    assert any(c.finish == "rival" for c in cut)
    (never,) = await engine.generate(
        [ask(root, "r", k=12, max_tokens=40, stop=STOPS, rivals=RivalStop(confidence=1, margin=1))], account
    )
    assert texts(never) == texts(full)


async def test_states_are_those_of_the_row_that_predicts_the_end_whoever_shares_the_pass(engine):
    account = Account()
    root = engine.open(PROMPT, account)
    (alone,) = await engine.generate([ask(root, "s", k=4, states=True)], account)
    engine.clear()
    (crowd, _) = await engine.generate([ask(root, "s", k=4, states=True), ask(root, "s", k=9)], account)
    engine.forward.take("mask")
    for a, b in zip(alone, crowd, strict=True):
        before_the_end = torch.tensor([b.handle.tokens[:-1]])
        states = engine.model(input_ids=before_the_end, output_hidden_states=True, use_cache=False).hidden_states
        for layer in range(1, engine.layers):
            expected = states[layer][0, -1]
            torch.testing.assert_close(b.handle.states[layer - 1], expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(a.handle.states, b.handle.states, atol=1e-4, rtol=0)


async def test_divergence_of_a_path_from_itself_is_nothing(engine):
    account = Account()
    _, first, _ = await grow(engine, account, k=4)
    a, b = first[0].handle, first[1].handle
    same, other = await engine.divergence([(a, a), (a, b)], account)
    assert same == (0.0, True)
    logs = [engine.forward.plain(h.tokens)[-1].double().log_softmax(-1) for h in (a, b)]
    assert other[0] == pytest.approx(float((logs[0].exp() * (logs[0] - logs[1])).sum()), abs=1e-4)
    assert account.ledger.prefill_tokens == account.ledger.distinct_tokens + account.ledger.recomputed_tokens


async def test_states_stay_what_they_were_whatever_comes_after_and_whoever_writes_the_same(engine):
    account = Account()
    root = engine.open(PROMPT, account)
    (found,) = await engine.generate([ask(root, "s", k=5, states=True)], account)
    handles = [completion.handle for completion in found]
    before = engine.similarity(handles[0], handles, 1.5)
    await engine.generate([ask(handle, n, k=2, states=True) for n, handle in enumerate(handles)], account)
    await engine.generate([ask(root, "s", k=5)], account)
    engine.clear()
    assert engine.similarity(handles[0], handles, 1.5) == before
    assert None not in before


async def test_a_prompt_in_chunks_is_no_hindrance_to_states():
    tokenizer = byte_tokenizer()
    with TransformersEngine(llama(len(tokenizer)), tokenizer, max_batch_tokens=4) as engine:
        account = Account()
        root = engine.open("a prompt that is longer than one pass", account)
        (found,) = await engine.generate([ask(root, k=3, max_tokens=3, states=True)], account)
        assert all(completion.handle.states is not None for completion in found)
