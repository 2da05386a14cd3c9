"""What goes wrong with one request stays with that request."""

import asyncio
import gc
import itertools
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
from tests.engine.conftest import byte_tokenizer, llama
from tests.engine.requests import HOT, LABELS, PROMPT, ask, grow, texts
from tests.patience import PATIENCE


def make(**options):
    tokenizer = build_tokenizer()
    return TransformersEngine(llama(len(tokenizer)), tokenizer, **options)


def per_token():
    """KV bytes of one token: keys and values, 3 layers, 2 heads of 12, fp32."""
    return 2 * 3 * 2 * 12 * 4


async def test_cancelling_gives_back_what_had_been_written():
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
def test_a_closed_event_loop_hurts_nobody_else(keep, length):
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


async def test_outgrowing_the_budget_fails_alone():
    with make(kv_budget=30 * per_token()) as engine:
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
    with make(kv_budget=6 * per_token()) as engine:
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


async def test_a_pass_that_runs_out_of_memory_is_tried_again_with_fewer_rows(monkeypatch, caplog):
    with make() as engine:
        account, plain = Account(), Account()
        calls = itertools.count()
        real = torch.Tensor.new_zeros

        def scarce(self, *shape, **options):
            if next(calls) in (2, 3):
                raise torch.OutOfMemoryError("no room")
            return real(self, *shape, **options)

        prompts = ["steps" + f" {n}" * 200 for n in range(8)]
        roots = [engine.open(prompt, account) for prompt in prompts]
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "new_zeros", scarce)
            found = await engine.generate([ask(root, k=1, max_tokens=1) for root in roots], account)
        assert account.ledger.backoffs == caplog.text.count("ran out of memory; going on with") > 0
        arena = engine.forward.arena
        assert {t.shape[1] for t in (*arena.keys.values(), *arena.values.values())} == {arena.rows}
        engine.check_integrity()
        with make() as other:
            wanted = await other.generate([ask(other.open(p, plain), k=1, max_tokens=1) for p in prompts], plain)
        assert [[c.text for c in reply] for reply in found] == [[c.text for c in reply] for reply in wanted]
        assert account.ledger.prefill_tokens == plain.ledger.prefill_tokens


@pytest.mark.parametrize("where", ["reserve", "forward"])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("no room"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"),
    ],
    ids=["device", "python", "allocator"],
)
async def test_while_memory_is_short_passes_stay_small_and_then_they_grow_back(monkeypatch, where, error):
    monkeypatch.setattr("rksc_tot.engine.scheduler.scheduler.RECOVERY", 4)
    prompts = [f"steps {n} 5 6 10\n" for n in range(8)]

    async def run(engine, account, name):
        roots = [engine.open(prompt, account) for prompt in prompts]
        found = await engine.generate([ask(root, name, k=4, max_tokens=14, stop=()) for root in roots], account)
        return [texts(each) for each in found]

    with make() as engine:
        wanted = [await run(engine, Account(), name) for name in "ab"]
    with make(max_batch_tokens=64) as engine:
        account = Account(kv_bytes=1 << 20)
        rows, failed, lifted, most = 0, 0, 0, []
        plan, place = engine.forward.plan, engine.forward.arena if where == "reserve" else engine.forward.model
        real = getattr(place, where)

        def planned(blocks):
            nonlocal rows
            rows = sum(len(block.tokens) for block in blocks)
            return plan(blocks)

        def scarce(*arguments, **options):
            nonlocal failed, lifted
            if rows > 10 and failed < 5:  # then there is room again
                failed, lifted = failed + 1, len(most)
                raise error
            most.append(engine.usage.most_rows)
            assert rows <= most[-1]
            return real(*arguments, **options)

        monkeypatch.setattr(engine.forward, "plan", planned)
        monkeypatch.setattr(place, where, scarce)
        assert [await run(engine, account, name) for name in "ab"] == wanted
        assert account.ledger.backoffs == failed == 5
        assert most[lifted] <= 10
        after = most[lifted:]
        assert after == sorted(after)
        assert after[-1] == engine.usage.most_rows == 64
        assert all(after.count(size) == 4 for size in set(after) - {64})
        engine.check_integrity()


async def test_when_not_even_one_row_fits_into_memory_the_request_fails(monkeypatch):
    with make() as engine:
        account = Account()
        root = engine.open(PROMPT, account)
        with monkeypatch.context() as patch:
            patch.setattr(engine.forward, "run", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("no room")))
            with pytest.raises(EngineError, match="no room"):
                await engine.generate([ask(root, k=1, max_tokens=1)], account)
        assert len(await engine.generate([ask(root, k=1, max_tokens=1)], account)) == 1


async def test_a_failed_pass_forgets_nothing_of_the_books(monkeypatch):
    with make(kv_budget=6 * per_token()) as engine:
        account = Account()
        root, other = engine.open(PROMPT, account), engine.open("solve 1 2 3 4\n", account)
        await engine.generate([ask(root, max_tokens=1)], account)
        await engine.generate([ask(other, max_tokens=1)], account)  # evicts the first
        with monkeypatch.context() as patch:
            patch.setattr(engine.forward.model, "forward", lambda **_: 1 / 0)
            with pytest.raises(EngineError, match="division by zero"):
                await engine.generate([ask(root, max_tokens=1)], account)
        await engine.generate([ask(root, max_tokens=1)], account)
        assert (account.ledger.distinct_tokens, account.ledger.recomputed_tokens) == (12, 6)


async def test_handles_of_others_are_refused():
    with make() as one, make() as two:
        root = one.open(PROMPT, Account())
        for handle in (root, None, "root"):
            with pytest.raises(EngineError, match="not a handle of this engine"):
                await two.label([LabelRequest(handle, "try so", LABELS)], Account())
            with pytest.raises(EngineError, match="not a handle of this engine"):
                two.release(handle)


async def test_numbers_that_are_none_end_the_request_that_met_them():
    tokenizer = build_tokenizer()
    model = llama(len(tokenizer))
    with torch.no_grad():
        model.model.embed_tokens.weight[tokenizer.encode("99")[0]] = float("nan")
    with TransformersEngine(model, tokenizer) as engine:
        account = Account()
        bad, good, longer = (engine.open(p, account) for p in ("99 4", "4 5 6\n", "7 8 9 1 2 4\n"))
        with pytest.raises(EngineError, match="NaN"):
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


async def test_a_token_the_model_does_not_know_is_refused_at_once():
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
def test_requests_no_engine_could_serve_are_refused_when_made(wrong):
    right = {"handle": None, "streams": stream_keys([0], "s"), "sampling": HOT, "max_tokens": 3}
    with pytest.raises(ConfigError):
        GenerateRequest(**(right | wrong))


@pytest.mark.parametrize("labels", [["yes", "no"], ("yes", 1)])
def test_labels_that_are_no_tuple_of_strings_are_refused_when_made(labels):
    with pytest.raises(ConfigError, match="labels are"):
        LabelRequest(None, "so", labels)


def test_an_overdrawn_account_grants_nothing():
    account = Account(tokens_left=-1)
    assert account.take(3) == 0
    assert account.ledger.tokens_sampled == 0


async def test_branches_that_wrote_the_same_are_one_completion():
    tokenizer = byte_tokenizer()
    with TransformersEngine(llama(len(tokenizer)), tokenizer) as engine:
        (found,) = await engine.generate([ask(engine.open("é", Account()), k=64, max_tokens=1, stop=())], Account())
        assert len({(c.text, c.tokens, c.finish) for c in found}) == len(found)
        assert sorted(b for c in found for b in c.branches) == list(range(64))


@pytest.mark.parametrize("rows", [1, 2, 2048])
async def test_two_requests_on_one_node_compute_nothing_twice(rows):
    with make(max_batch_tokens=rows) as engine:
        account = Account()
        root = engine.open(PROMPT, account)
        await engine.generate([ask(root, "a", k=4, max_tokens=12), ask(root, "b", k=5, max_tokens=12)], account)
        assert account.ledger.prefill_tokens == account.ledger.distinct_tokens
        assert account.ledger.recomputed_tokens == 0


async def test_rows_walked_again_are_booked_as_recomputed():
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


def test_the_model_is_its_owners_again_after_close():
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
