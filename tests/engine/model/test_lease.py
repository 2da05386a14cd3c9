"""Engines on one model object: none is noticed by another, and the owner has the model back as he gave it."""

import asyncio
import copy
import threading

import pytest
from torch import nn

from rksc_tot.cache.offload.store import open_store
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine.base import Account, GenerateRequest, Sampling
from rksc_tot.engine.model.lease import lease_of
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
    """What an engine writes alone, to be compared to the last bit where the engine claims that company does not matter."""
    with engine_on(model, **options) as engine:
        found = asyncio.run(written(engine))
        exactly = engine.numerics["batch_invariant"]
    return found if exactly else [(text, pytest.approx(logprobs, abs=1e-4)) for text, logprobs in found]


@pytest.mark.parametrize("pack", [(True, True), (True, False), (False, True)])
def test_one_that_is_closed_leaves_the_other_as_it_was(model, pack):
    wanted = alone(model, pack=pack[1])
    one, two = (engine_on(model, pack=each) for each in pack)
    one.close()
    with two:
        assert asyncio.run(written(two)) == wanted


def test_engines_at_work_at_once_find_what_each_finds_alone(model):
    wanted = {pack: alone(model, pack=pack) for pack in (True, False)}
    with engine_on(model, pack=True) as one, engine_on(model, pack=False) as two:
        for _ in range(3):
            found = asyncio.run(both(one, two))
            assert found == [wanted[True], wanted[False]]


async def both(one, two):
    return await asyncio.gather(written(one), written(two))


def test_a_search_goes_on_while_another_engine_is_made_and_closed(model):
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


def test_the_second_packs_what_the_first_has_packed(model):
    with engine_on(model, pack=True), engine_on(model) as second, engine_on(llama(len(tokenizer))) as fresh:
        assert second.numerics["linear"] == fresh.numerics["linear"]


def test_the_owner_has_his_model_back_when_all_are_closed(model):
    attention = model.config._attn_implementation
    engines = [engine_on(model, pack=True) for _ in range(2)]
    for engine in engines:
        asyncio.run(written(engine))
        engine.close()
    assert model.config._attn_implementation == attention
    assert {type(layer) for layer in model.modules() if hasattr(layer, "in_features")} == {nn.Linear}


@pytest.mark.parametrize("wrong", [
    {"kv_budget": 1}, {"compress": "no such"}, {"lossless": True}, {"offload": "cpu", "offload_budget": 1}, {"offload": "moon"},
])  # fmt: skip
def test_an_engine_that_is_refused_gives_the_model_back(model, wrong):
    stock = [type(module) for module in model.modules()]
    with pytest.raises(ConfigError):
        engine_on(model, pack=True, **wrong)
    assert [type(module) for module in model.modules()] == stock


def test_an_engine_that_is_refused_leaves_the_store_to_another(model):
    store = open_store("cpu")
    with pytest.raises(ConfigError, match="nothing compresses it"):
        engine_on(model, offload=store, lossless=True)
    with engine_on(model, offload=store) as engine:
        assert engine.offload_store is store


def test_a_copy_of_a_lent_model_is_lent_to_nobody(model):
    with engine_on(model, pack=False):
        twin = copy.deepcopy(model)
    assert lease_of(twin) is not lease_of(model)
