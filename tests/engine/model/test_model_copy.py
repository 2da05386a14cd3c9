"""An engine does not change its model: it can be called at any time, and engines share it. Changed weights are noticed."""

import asyncio
import threading

import pytest
import torch
from torch import nn

from rksc_tot.cache.offload.open_store import open_store
from rksc_tot.core.errors import ConfigError, EngineError, UnsupportedModel
from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine.base import Account, GenerateRequest, Sampling
from rksc_tot.engine.model.model_copy import copy_of
from rksc_tot.engine.model.onednn_linear import OneDNNLinear
from rksc_tot.engine.transformers_engine.engine import TransformersEngine
from tests.engine.conftest import byte_tokenizer, llama

tokenizer = byte_tokenizer()


@pytest.fixture
def model():
    return llama(len(tokenizer))


def engine_on(model, **options):
    return TransformersEngine(model, tokenizer, name="tiny", **options)


async def written(engine):
    """Three branches of 20 tokens: their texts and log-probabilities."""
    handle = engine.open("say yes no and on", Account())
    [found] = await engine.generate([GenerateRequest(handle, stream_keys(range(3)), Sampling(), 20)], Account())
    return [(one.text, one.logprobs) for one in found]


def alone(model, **options):
    """The texts of an engine without other requests, with exact bits if the engine is batch-invariant."""
    with engine_on(model, **options) as engine:
        found = asyncio.run(written(engine))
        exactly = engine.numerics["batch_invariant"]
    return found if exactly else [(text, pytest.approx(logprobs, abs=1e-4)) for text, logprobs in found]


@pytest.mark.parametrize("pack", [(True, True), (True, False), (False, True)])
def test_closing_an_engine_does_not_change_another_on_the_same_model(model, pack):
    wanted = alone(model, pack=pack[1])
    one, two = (engine_on(model, pack=each) for each in pack)
    one.close()
    with two:
        assert asyncio.run(written(two)) == wanted


def test_concurrent_engines_on_one_model_give_the_texts_of_each_alone(model):
    wanted = {pack: alone(model, pack=pack) for pack in (True, False)}
    with engine_on(model, pack=True) as one, engine_on(model, pack=False) as two:
        for _ in range(3):
            found = asyncio.run(both(one, two))
            assert found == [wanted[True], wanted[False]]


async def both(one, two):
    return await asyncio.gather(written(one), written(two))


def test_a_search_continues_while_another_engine_is_made_and_closed(model):
    wanted, found, over = alone(model), [], threading.Event()
    with engine_on(model) as engine:

        def work():
            while not over.is_set():
                found.append(asyncio.run(written(engine)))

        worker = threading.Thread(target=work)
        worker.start()
        for _ in range(3):
            engine_on(model).close()
        over.set()
        worker.join()
    assert found
    assert all(one == wanted for one in found)


IDS = torch.tensor([[5, 6, 7, 8, 9]])


def state(model):
    """All state of a model that an engine might change."""
    return model.config._attn_implementation, [type(module) for module in model.modules()], list(model.state_dict())


@pytest.mark.parametrize("pack", [True, False])
def test_an_open_engine_changes_no_bit_of_the_model(model, pack):
    other = llama(len(tokenizer))  # another copy, on which there is no engine
    before = state(model)
    with engine_on(model, pack=pack) as engine, torch.inference_mode():
        asyncio.run(written(engine))
        assert state(model) == before
        assert model(input_ids=IDS).logits.equal(other(input_ids=IDS).logits)
        assert model.generate(IDS, max_new_tokens=6).equal(other.generate(IDS, max_new_tokens=6))
        assert model.model(input_ids=IDS).last_hidden_state.equal(other.model(input_ids=IDS).last_hidden_state)
    assert state(model) == before


def test_the_model_can_be_called_from_another_thread_during_passes(model):
    expected, logits, over = alone(model), [], threading.Event()
    with torch.inference_mode():
        own = model(input_ids=IDS).logits

    def judge():
        with torch.inference_mode():
            while not over.is_set():
                logits.append(model(input_ids=IDS).logits)

    with engine_on(model) as engine:
        thread = threading.Thread(target=judge)
        thread.start()
        found = [asyncio.run(written(engine)) for _ in range(4)]
        over.set()
        thread.join()
    assert logits
    assert all(one.equal(own) for one in logits)
    assert all(one == expected for one in found)


def test_a_copy_shares_the_weights_and_calls_the_hooks(model):
    seen = []
    model.model.norm.register_forward_hook(lambda *_: seen.append(1))
    copy = copy_of(model)
    assert [id(p) for p in copy.parameters()] == [id(p) for p in model.parameters()]
    assert copy.config is not model.config
    copy(input_ids=IDS)
    assert seen == [1]


def test_a_model_that_cannot_be_copied_is_refused(model):
    model.model.lock = threading.Lock()
    with pytest.raises(UnsupportedModel, match="cannot be copied"):
        engine_on(model)


def write(model):
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)


def write_past_torch(model):
    model.lm_head.weight.data.mul_(-1)


def replace_a_parameter(model):
    model.lm_head.weight = nn.Parameter(-model.lm_head.weight.detach())


def replace_the_memory(model):
    model.lm_head.weight.data = -model.lm_head.weight.detach()


def add_an_adapter(model):
    class Adapter(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base_layer = base

        def forward(self, hidden):
            return -self.base_layer(hidden)

    model.lm_head = Adapter(model.lm_head)


CHANGES = (write, write_past_torch, replace_a_parameter, replace_the_memory, add_an_adapter)


@pytest.mark.parametrize(("change", "pack"), [
    *((change, True) for change in CHANGES), (write, False), (add_an_adapter, False),
    *(pytest.param(change, False, marks=pytest.mark.slow) for change in CHANGES[1:4]),
])  # fmt: skip
def test_changed_weights_are_refused_until_the_engine_is_cleared(model, change, pack):
    with engine_on(model, pack=pack) as engine:
        before = asyncio.run(written(engine))
        handle = engine.open("say yes no and on", Account())
        change(model)
        with pytest.raises(EngineError, match="weights or adapters have changed"):
            asyncio.run(written(engine))
        engine.clear()
        assert asyncio.run(written(engine)) == alone(model, pack=pack) != before
        engine.release(handle)
        engine.check_integrity()


def test_weights_that_change_during_a_request_end_it(model):
    with engine_on(model) as engine:
        handle = engine.open("say yes", Account())
        run = engine.forward.run

        def changing(*args):
            write(model)
            return run(*args)

        engine.forward.run = changing
        request = GenerateRequest(handle, stream_keys(range(2)), Sampling(), 9)
        with pytest.raises(EngineError, match=r"^the model's weights or adapters have changed"):
            asyncio.run(engine.generate([request], Account()))


def offloaded_tokens(engine):
    """Tokens whose KV has a copy outside the arena."""
    return sum(
        s.kv.offloaded.tokens for s in engine.cache.segments() if s.kv.offloaded is not None and not s.kv.offloaded.gone
    )


def test_offloaded_kv_of_old_weights_is_dropped(model):
    with engine_on(model, offload="cpu") as engine:
        handle = engine.open("say yes no and on", Account())
        [found] = asyncio.run(engine.generate([GenerateRequest(handle, (1,), Sampling(), 9)], Account()))
        with engine.engine_thread.books():
            for segment in list(engine.cache.segments()):
                engine.cache.evictor.evict_subtree(segment)
        assert offloaded_tokens(engine)
        write(model)
        engine.clear()
        assert not offloaded_tokens(engine)
        [fresh] = asyncio.run(engine.generate([GenerateRequest(found[0].handle, (1,), Sampling(), 9)], Account()))
        path, drawn = fresh[0].handle.tokens, fresh[0].tokens
        logprobs = engine.forward.plain(path).log_softmax(-1)[-1 - len(drawn) : -1]
        wanted = logprobs.gather(1, torch.tensor(drawn)[:, None])[:, 0].tolist()
    assert fresh[0].logprobs == pytest.approx(wanted, abs=1e-4)


def test_a_changed_model_that_fails_the_probe_is_refused(model):
    with engine_on(model) as engine:
        hook = model.lm_head.register_forward_hook(lambda module, args, out: out + torch.rand(1))
        write(model)
        with pytest.raises(UnsupportedModel):
            engine.clear()
        with pytest.raises(EngineError, match="weights or adapters have changed"):
            engine.open("say", Account())
        hook.remove()
        engine.clear()
        assert asyncio.run(written(engine)) == alone(model)


def test_only_the_copy_has_packed_layers(model):
    with engine_on(model, pack=True) as engine:
        assert any(isinstance(module, OneDNNLinear) for module in engine.forward.model.modules())
        assert not any(isinstance(module, OneDNNLinear) for module in model.modules())


def test_a_store_can_be_used_after_a_refused_engine(model):
    store = open_store("cpu")
    with pytest.raises(ConfigError, match="and compress is not set"):
        engine_on(model, offload=store, lossless=True)
    with engine_on(model, offload=store) as engine:
        assert engine.offload_store is store
