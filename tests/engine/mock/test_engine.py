"""The mock engine keeps the contract of an engine, token for token."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.core.errors import CacheError, ConfigError, ContextOverflow, EngineError
from rksc_tot.engine.base import Account, Engine, GenerateRequest, LabelRequest, Sampling
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.policies.early_exit.cgee import Margins

HOT, GREEDY = Sampling(), Sampling(temperature=0)


def request(handle, streams=(1,), sampling=HOT, max_tokens=50, stop=("\n",), **options):
    return GenerateRequest(handle, tuple(streams), sampling, max_tokens, tuple(stop), **options)


def says(text):
    return lambda so_far, rng: text


async def write(engine, account=None, prompt="ab", **options):
    account = account or Account()
    handle = engine.open(prompt, account)
    [completions] = await engine.generate([request(handle, **options)], account)
    return completions, account.ledger


def test_the_mock_engine_implements_the_engine_protocol():
    assert isinstance(MockEngine(says("")), Engine)


@pytest.mark.parametrize(
    ("raw", "options", "expected"),
    [
        ("one\ntwo", {}, ("one", "one\n", "stop", 4)),
        ("one\ntwo", {"keep_stop": False}, ("one", "one", "stop", 4)),
        ("one", {}, ("one", "one\n", "eos", 4)),  # closed like any other thought
        ("one", {"keep_stop": False}, ("one", "one", "eos", 4)),
        ("", {}, ("", "\n", "eos", 1)),
        ("\n", {}, ("", "\n", "stop", 1)),
        ("one\n", {"max_tokens": 4}, ("one", "one\n", "stop", 4)),
        ("one\n", {"max_tokens": 3}, ("one", "one", "length", 3)),
        ("a||b\n", {"stop": ("\n", "||")}, ("a", "a||", "stop", 3)),
        ("a||b", {"stop": ("||",), "max_tokens": 2}, ("a|", "a|", "length", 2)),
        ("é😀ü\n", {}, ("é😀ü", "é😀ü\n", "stop", 4)),
        ("é😀ü\n", {"max_tokens": 2}, ("é😀", "é😀", "length", 2)),
        ("a\ufffd", {"max_tokens": 2}, ("a\ufffd", "a\ufffd", "length", 2)),  # what was written, not half a character
        ("\n \none\ntwo", {"skip_blank": True}, ("one", "\n \none\n", "stop", 7)),
        ("\none", {"skip_blank": True}, ("one", "\none\n", "eos", 5)),
        ("\n", {"skip_blank": True, "max_tokens": 3}, ("", "\n\n\n", "length", 3)),
    ],
)
async def test_a_text_is_cut_at_its_stop_string_or_at_its_limit(raw, options, expected):
    text, kept, finish, sampled = expected
    [completion], ledger = await write(MockEngine(says(raw)), **options)
    assert (completion.text, completion.finish, ledger.tokens_sampled) == (text, finish, sampled)
    assert "".join(map(chr, completion.tokens)) == kept
    assert len(completion.logprobs) == len(kept)
    assert completion.handle.length == 2 + len(kept)


async def test_every_branch_is_in_one_completion_ordered_by_first_branch():
    completions, _ = await write(MockEngine(lambda text, rng: rng.choice("abc") + "\n"), streams=range(30))
    assert sorted(itertools.chain(*(completion.branches for completion in completions))) == list(range(30))
    firsts = [completion.branches[0] for completion in completions]
    assert firsts == sorted(firsts)
    assert len({completion.text for completion in completions}) == len(completions) == 3


async def test_a_branch_depends_on_its_own_stream_only():
    engine = MockEngine(lambda text, rng: f"{rng.random()}\n")
    together, _ = await write(engine, streams=(5, 6, 7))
    alone, _ = await write(engine, streams=(6,))
    assert alone[0].text == together[1].text


async def test_greedy_branches_are_equal():
    completions, _ = await write(MockEngine(lambda text, rng: f"{rng.random()}\n"), streams=(5, 6), sampling=GREEDY)
    assert [completion.branches for completion in completions] == [(0, 1)]


async def test_the_writer_may_give_log_probabilities():
    [completion], _ = await write(MockEngine(says(("ab\n", -2.0))))
    assert completion.logprobs == (-2.0,) * 3


async def test_tokens_are_taken_from_the_account_and_never_overdrawn():
    account = Account(tokens_left=6)
    completions, ledger = await write(MockEngine(says("abc\n")), account, streams=(1, 2))
    assert [completion.finish for completion in completions] == ["stop", "budget"]
    assert (account.tokens_left, ledger.tokens_sampled) == (0, 6)


async def test_nothing_is_written_after_the_deadline():
    [completion], ledger = await write(MockEngine(says("abc\n")), Account(deadline=0.0))
    assert (completion.text, completion.finish, ledger.tokens_sampled) == ("", "budget", 0)


async def test_the_ledger_books_prompt_and_path_once_and_decode_steps_separately():
    engine, account = MockEngine(says("cd\n")), Account()
    root = engine.open("ab", account)
    [[child]] = await engine.generate([request(root)], account)
    ledger = account.ledger
    # rows: a b, then c d are fed to get d and \n; \n itself is computed at the next visit
    assert (ledger.prefill_tokens, ledger.distinct_tokens, ledger.context_tokens, ledger.context_computed) == (
        4,
        4,
        2,
        2,
    )
    await engine.generate([request(child.handle)], account)
    assert (ledger.prefill_tokens, ledger.context_tokens, ledger.context_computed) == (4 + 1 + 2, 2 + 5, 2 + 1)
    await engine.generate([request(root)], account)
    assert (ledger.prefill_tokens, ledger.distinct_tokens) == (7, 7)
    assert ledger.peak_kv_bytes == 7
    assert ledger.prefill_saved == 1 - 3 / 9


@given(st.lists(st.text("ab", max_size=6), max_size=12))
async def test_stored_characters_are_the_distinct_prefixes(texts):
    engine, account = MockEngine(says("")), Account()
    for text in texts:
        await engine.generate([request(engine.open(text, account))], account)
    prefixes = {text[:i] for text in texts for i in range(1, len(text) + 1)}
    assert account.ledger.prefill_tokens == account.ledger.distinct_tokens == len(prefixes)


async def test_a_suffix_is_scratch_and_its_completions_have_no_handle():
    seen = []

    def writer(text, rng):
        seen.append(text)
        return "x\ny\n\n"

    engine, account = MockEngine(writer), Account()
    root = engine.open("ab", account)
    [[completion]] = await engine.generate([request(root, suffix="??", stop=("\n\n",))], account)
    assert seen == ["ab??"]
    assert (completion.text, completion.handle) == ("x\ny", None)
    assert (account.ledger.proposal_tokens, account.ledger.prefill_tokens, engine.handles) == (2 + 4, 2, 1)


async def test_label_probabilities_sum_to_one_and_stay_out_of_the_cache():
    engine, account = MockEngine(says(""), lambda text, question, labels: {"yes": 0.3, "no": 0.1}), Account()
    handle = engine.open("ab", account)
    [scores] = await engine.label([LabelRequest(handle, "ok?", ("yes", "no"))], account)
    assert scores.probabilities == pytest.approx({"yes": 0.75, "no": 0.25})
    assert scores.outside == pytest.approx(0.6)
    assert (account.ledger.verifier_tokens, account.ledger.prefill_tokens, engine.handles) == (3, 2, 1)


async def test_chat_messages_are_turns():
    seen = []
    engine = MockEngine(lambda text, rng: seen.append(text) or "x\n")
    await write(engine, prompt=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    assert seen == ["system: Be brief.\nuser: Hi\nassistant: "]


async def test_released_and_foreign_handles_are_refused():
    engine, account = MockEngine(says("")), Account()
    handle = engine.open("ab", account)
    engine.release(handle)
    for call in (lambda: engine.release(handle), lambda: engine.extend(handle, "c"), lambda: engine.extend(None, "c")):
        with pytest.raises(EngineError):
            call()
    with pytest.raises(EngineError, match="released"):
        await engine.generate([request(handle)], account)
    with pytest.raises(EngineError, match="released"):
        await engine.label([LabelRequest(handle, "?", ("a", "b"))], account)


async def test_a_closed_engine_refuses_everything():
    engine = MockEngine(says(""))
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.open("ab", Account())


async def test_a_path_can_fill_the_context_and_no_more():
    engine, account = MockEngine(says("x" * 99), context=10), Account()
    with pytest.raises(ContextOverflow, match="10 tokens leave no room in a context of 10"):
        engine.open("a" * 10, account)
    [[completion]] = await engine.generate([request(engine.open("a" * 7, account))], account)
    assert (completion.text, completion.finish) == ("xxx", "length")
    with pytest.raises(ContextOverflow):
        await engine.generate([request(completion.handle)], account)


@pytest.mark.parametrize("writer", [lambda text, rng: 1 / 0, lambda text, rng: 5, lambda text, rng: None])
async def test_a_writer_that_fails_is_an_engine_error_and_no_handle_is_lost(writer):
    engine, account = MockEngine(lambda text, rng: "x\n" if text == "a" else writer(text, rng)), Account()
    handles = [engine.open(text, account) for text in "ab"]
    with pytest.raises(EngineError, match="the writer raised"):
        await engine.generate([request(handle) for handle in handles], account)
    assert engine.handles == 2


async def test_a_labeller_that_fails_is_an_engine_error():
    engine, account = MockEngine(says(""), labeller=lambda text, question, labels: None), Account()
    with pytest.raises(EngineError, match="the labeller raised"):
        await engine.label([LabelRequest(engine.open("a", account), "?", ("a", "b"))], account)


async def test_labels_with_equal_beginnings_are_refused_like_in_the_real_engine():
    engine, account = MockEngine(says(""), layers=3), Account()
    handle = engine.open("a", account)
    for how in ({"trace": True}, {"exit": Margins(thresholds={1: 0.5})}):
        with pytest.raises(ConfigError, match="'quick' and 'quiet' begin with the same token"):
            await engine.label([LabelRequest(handle, "?", ("quick", "quiet"), **how)], account)
    [scores] = await engine.label([LabelRequest(handle, "?", ("quick", "quiet"))], account)
    assert scores.outside == 0
    with pytest.raises(EngineError, match="are not two or more different words"):
        await engine.label([LabelRequest(handle, "?", ("quick", "quick "))], account)


async def test_releasing_the_last_handle_of_an_account_drops_its_kv():
    engine, one, two = MockEngine(says("cd\n")), Account(), Account()
    root, other = engine.open("ab", one), engine.open("ab", two)
    [[child]] = await engine.generate([request(root)], one)
    await engine.generate([request(other)], two)
    engine.release(root)
    assert engine.usage.kv_bytes == 2 * len("abcd")
    engine.release(child.handle)
    [[_]] = await engine.generate([request(other)], two)
    assert engine.usage.kv_bytes == len("abcd")
    assert (two.ledger.prefill_tokens, two.ledger.distinct_tokens) == (4, 4)


async def test_kv_without_a_handle_is_evicted_and_computed_again():
    engine, account = MockEngine(lambda text, rng: f"{rng.random():.3f}\n"), Account(kv_bytes=9)
    root = engine.open("ab", account)
    [[first]] = await engine.generate([request(root, streams=(1,))], account)  # its 0.123 is stored, its \n is not yet
    engine.release(first.handle)
    [[second]] = await engine.generate([request(root, streams=(2,))], account)
    assert not account.kv_short
    assert (second.finish, engine.usage.kv_bytes <= 9, account.ledger.evicted_tokens > 0) == ("stop", True, True)
    again = engine.extend(root, first.text)
    engine.release(second.handle)
    await engine.label([LabelRequest(again, "?", ("a", "b"))], account)
    ledger = account.ledger
    assert ledger.recomputed_tokens == ledger.prefill_tokens - ledger.distinct_tokens > 0


async def test_a_full_kv_budget_ends_branches_and_leaves_labels_unanswered():
    engine, account = MockEngine(says("abcdefgh\n")), Account(kv_bytes=6)
    root = engine.open("xy", account)
    [[completion]] = await engine.generate([request(root)], account)
    assert (completion.text, completion.finish, account.kv_short) == ("abcde", "budget", True)
    assert engine.usage.kv_bytes == 6
    longer = engine.extend(completion.handle, "z")
    assert await engine.label([LabelRequest(longer, "?", ("a", "b"))], account) == [None]
    [[completion]] = await engine.generate([request(longer)], account)
    assert (completion.text, completion.finish) == ("", "budget")


def test_a_prompt_larger_than_the_kv_budget_is_refused_with_its_size():
    with pytest.raises(CacheError, match="7 tokens take 7 bytes of KV, the search may hold 6"):
        MockEngine(says("")).open("abcdefg", Account(kv_bytes=6))


@given(
    st.integers(3, 40),
    st.lists(
        st.tuples(st.sampled_from(["write", "ask", "release"]), st.integers(0, 99), st.integers(1, 3)), max_size=20
    ),
)
async def test_an_account_never_holds_more_than_its_kv_budget(most, steps):
    engine, account = (
        MockEngine(lambda text, rng: "ab"[rng.randrange(2)] * rng.randrange(9) + "\n"),
        Account(kv_bytes=most),
    )
    handles = [engine.open("ab\n", account)]
    for step, at, branches in steps:
        handle = handles[at % len(handles)]
        if step == "write":
            [found] = await engine.generate([request(handle, streams=range(at, at + branches))], account)
            handles += [completion.handle for completion in found]
        elif step == "ask":
            await engine.label([LabelRequest(handle, "?", ("a", "b"))], account)
        elif handle is not handles[0]:
            engine.release(handle)
            handles.remove(handle)
        assert engine.usage.kv_bytes <= most
    ledger = account.ledger
    assert ledger.prefill_tokens - ledger.evicted_tokens == engine.usage.kv_bytes
    assert ledger.recomputed_tokens == ledger.prefill_tokens - ledger.distinct_tokens


@pytest.mark.parametrize(
    ("last", "text"),
    [("user", "user: hi\nuser: x\nassistant: "), ("assistant", "user: hi\nassistant: x")],
)
def test_a_last_message_of_the_assistant_is_continued(last, text):
    engine = MockEngine(says(""))
    assert engine.open([{"role": "user", "content": "hi"}, {"role": last, "content": "x"}], Account()).text == text
