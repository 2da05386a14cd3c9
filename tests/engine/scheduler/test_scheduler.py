"""A failure of one request does not affect others."""

import asyncio
import gc
import threading
import time
import weakref

import pytest
import torch

from rksc_tot.core.errors import CacheError, ConfigError, EngineError
from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account, GenerateRequest, LabelRequest, Sampling
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import PER_TOKEN, byte_tokenizer, llama
from tests.engine.requests import HOT, LABELS, PROMPT, ask, grow, texts
from tests.engine.scheduler.tiny_engine import make
from tests.patience import PATIENCE


async def test_a_cancelled_request_releases_its_completions():
    tokenizer = byte_tokenizer()
    with TransformersEngine(llama(len(tokenizer)), tokenizer) as engine:
        root = engine.open("say", Account())
        request = ask(root, k=32, max_tokens=200, stop=("a", "e", "o"))
        task = asyncio.create_task(engine.generate([request, ask(root, "b", k=2, max_tokens=1)], Account()))
        while engine.usage.passes < 8:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        engine.release(root)
        engine.clear()
        assert engine.usage.kv_bytes == 0
        assert list(engine.cache.segments()) == []


def abandon(engine, root):
    """A request on an event loop that is closed under it, as an interrupted notebook cell leaves it."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(engine.generate([ask(root, "dead", k=2, max_tokens=6, stop=())], Account()))
    for _ in range(2):
        loop.run_until_complete(asyncio.sleep(0))
    time.sleep(0.02)
    loop.close()
    return task


@pytest.mark.filterwarnings("ignore")  # the interpreter rightly complains about the abandoned coroutine
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("length", [5, 6, 7])
def test_a_closed_event_loop_does_not_affect_other_requests(keep, length):
    with make() as engine:
        root = engine.open(PROMPT, Account())
        dead = abandon(engine, root)
        if not keep:
            dead = None
            gc.collect()
        found = []

        def survive():
            request = ask(root, "x", k=2, max_tokens=length, stop=())
            found.append(asyncio.run(asyncio.wait_for(engine.generate([request], Account()), PATIENCE)))

        thread = threading.Thread(target=survive, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert len(found) == 1
        assert not thread.is_alive()
        del dead
        gc.collect()


async def test_only_the_request_that_outgrows_the_budget_fails():
    with make(kv_budget=30 * PER_TOKEN) as engine:
        root = engine.open(PROMPT, Account())
        small = engine.extend(root, "10 -")
        greedy, tiny, label = await asyncio.gather(
            engine.generate([ask(root, "greedy", k=40, max_tokens=8, stop=())], Account()),
            engine.generate([ask(small, "tiny", k=1, max_tokens=3, stop=())], Account()),
            engine.label([LabelRequest(small, "so", LABELS)], Account()),
            return_exceptions=True,
        )
        assert isinstance(greedy, CacheError)
        assert len(tiny[0]) == 1
        assert sum(label[0].probabilities.values()) == pytest.approx(1)
        engine.check_integrity()


async def test_a_path_that_fills_the_budget_can_be_visited_again():
    with make(kv_budget=6 * PER_TOKEN) as engine:
        for _ in range(2):
            root = engine.open(PROMPT, Account())
            assert root.length == 6
            await engine.generate([ask(root, max_tokens=1)], Account())
            engine.release(root)


@pytest.mark.parametrize("from_a_thread", [True, False])
async def test_closing_during_a_request_is_an_engine_error(from_a_thread):
    engine = make()
    root = engine.open(PROMPT, Account())
    task = asyncio.create_task(engine.generate([ask(root, k=4, max_tokens=240, stop=())], Account()))
    await asyncio.sleep(0.03)
    if from_a_thread:
        await asyncio.to_thread(engine.close)
    else:
        engine.close()
    with pytest.raises(EngineError, match="closed"):
        await task


async def test_every_call_on_a_closed_engine_is_refused():
    engine = make()
    root = engine.open(PROMPT, Account())
    engine.close()
    engine.close()
    for call in (engine.clear, lambda: engine.release(root), lambda: engine.open(PROMPT, Account())):
        with pytest.raises(EngineError, match="closed"):
            call()
    for work in (engine.generate([], Account()), engine.label([], Account())):
        with pytest.raises(EngineError, match="closed"):
            await work


async def test_handles_of_other_engines_are_refused():
    with make() as one, make() as two:
        root = one.open(PROMPT, Account())
        for handle in (root, None, "root"):
            with pytest.raises(EngineError, match="not a handle of this engine"):
                await two.label([LabelRequest(handle, "try so", LABELS)], Account())
            with pytest.raises(EngineError, match="not a handle of this engine"):
                two.release(handle)


async def test_logits_that_are_not_finite_end_only_their_request():
    tokenizer = build_tokenizer()
    model = llama(len(tokenizer))
    with torch.no_grad():
        model.model.embed_tokens.weight[tokenizer.encode("99")[0]] = float("nan")
    with TransformersEngine(model, tokenizer) as engine:
        account = Account()
        bad, good, longer = (engine.open(p, account) for p in ("99 4", "4 5 6\n", "7 8 9 1 2 4\n"))
        with pytest.raises(
            EngineError, match=r"NaN or infinite\): NaN .* are in the weights model.embed_tokens.weight - load"
        ):
            await engine.label([LabelRequest(bad, "try so", LABELS)], account)
        wrong, right, label = await asyncio.gather(
            engine.generate([ask(bad)], account),
            engine.generate([ask(good)], account),
            engine.label([LabelRequest(good, "try so", LABELS), LabelRequest(longer, "try so", LABELS)], account),
            return_exceptions=True,
        )
        assert isinstance(wrong, EngineError)
        assert right[0]
        assert all(0 <= p <= 1 for score in label for p in score.probabilities.values())


async def test_a_tiny_temperature_is_almost_greedy():
    with make() as engine:
        root = engine.open(PROMPT, Account())
        (cold,) = await engine.generate([ask(root, sampling=Sampling(temperature=1e-40))], Account())
        (greedy,) = await engine.generate([ask(root, sampling=Sampling(temperature=0))], Account())
        assert [c.tokens for c in cold] == [c.tokens for c in greedy]


async def test_a_token_outside_the_vocabulary_is_refused_at_once():
    tokenizer = build_tokenizer()
    with (
        TransformersEngine(llama(len(tokenizer) - 5), tokenizer) as engine,
        pytest.raises(EngineError, match="the model knows"),
    ):
        engine.open("steps 4 impossible", Account())


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"streams": ()},
        {"streams": (-1,)},
        {"stop": ("",)},
        {"stop": "\n"},
        {"stop": (3,)},
    ],
)
def test_invalid_requests_are_refused_at_construction(wrong):
    right = {"handle": None, "streams": stream_keys([0], "s"), "sampling": HOT, "max_tokens": 3}
    with pytest.raises(ConfigError):
        GenerateRequest(**(right | wrong))


@pytest.mark.parametrize("labels", [["yes", "no"], ("yes", 1)])
def test_labels_that_are_not_a_tuple_of_strings_are_refused_at_construction(labels):
    with pytest.raises(ConfigError, match="labels are"):
        LabelRequest(None, "so", labels)


def test_an_overdrawn_account_grants_nothing():
    account = Account(tokens_left=-1)
    assert account.take(3) == 0
    assert account.ledger.tokens_sampled == 0


async def test_branches_with_equal_tokens_are_one_completion():
    tokenizer = byte_tokenizer()
    with TransformersEngine(llama(len(tokenizer)), tokenizer) as engine:
        (found,) = await engine.generate([ask(engine.open("é", Account()), k=64, max_tokens=1, stop=())], Account())
        assert len({(c.text, c.tokens, c.finish) for c in found}) == len(found)
        assert sorted(b for c in found for b in c.branches) == list(range(64))


@pytest.mark.parametrize("rows", [1, 2, 2048])
async def test_two_requests_on_one_node_compute_no_token_twice(rows):
    with make(max_batch_tokens=rows) as engine:
        account = Account()
        root = engine.open(PROMPT, account)
        await engine.generate([ask(root, "a", k=4, max_tokens=12), ask(root, "b", k=5, max_tokens=12)], account)
        assert account.ledger.prefill_tokens == account.ledger.distinct_tokens
        assert account.ledger.recomputed_tokens == 0


async def test_rows_computed_again_are_booked_as_recomputed():
    with make() as engine:
        account = Account()
        root = engine.open(PROMPT, account)
        (first,) = await engine.generate([ask(root, "a")], account)
        before = account.ledger.distinct_tokens
        (second,) = await engine.generate([ask(root, "a")], account)
        assert texts(first) == texts(second)
        assert account.ledger.distinct_tokens == before
        assert account.ledger.prefill_tokens == before + account.ledger.recomputed_tokens


async def test_logits_kept_for_handles_are_bounded(monkeypatch):
    monkeypatch.setattr("rksc_tot.engine.scheduler.scheduler.LOGIT_BYTES", 10 * 432 * 4)
    with make() as engine:
        account = Account()
        _, first, second = await grow(engine, account, k=8)
        await engine.label([LabelRequest(c.handle, "try so", LABELS) for c in [*first, *second]], account)
        await engine.generate([ask(second[0].handle, "x")], account)
        assert sum(segment.logits is not None for segment in engine.cache.segments()) <= 12


def test_the_model_is_unchanged_after_close():
    tokenizer = build_tokenizer()
    model = llama(len(tokenizer))
    ids = torch.tensor([tokenizer.encode(PROMPT)])
    before = model(input_ids=ids).logits
    for _ in range(2):
        with TransformersEngine(model, tokenizer) as one, TransformersEngine(model, tokenizer) as two:
            assert one.capabilities.route == two.capabilities.route == "fast"
        assert torch.allclose(model(input_ids=ids).logits, before, atol=1e-6)


async def test_closing_gives_the_memory_back():
    engine = make()
    await engine.generate([ask(engine.open(PROMPT, Account()))], Account())
    arena = engine.forward.arena
    stored = [weakref.ref(tensor) for tensor in (*arena.keys.values(), *arena.values.values())]
    engine.close()
    gc.collect()
    assert stored
    assert all(ref() is None for ref in stored)
    assert arena.rows == 0
