"""KV of a pass without finite logits is never read by a later request."""

import pytest
import torch

from rksc_tot.core.errors import EngineError
from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account, GenerateRequest, LabelRequest, Sampling
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import llama

PROMPT = "4 5 6 10\n"
PLACES = {
    "keys of the first layer": lambda model: model.model.layers[0].self_attn.k_proj,
    "the last layer": lambda model: model.model.layers[-1].mlp,
    "the head": lambda model: model.lm_head,
}


def make(**settings):
    tokenizer = build_tokenizer()
    return TransformersEngine(llama(len(tokenizer)), tokenizer, name="tiny", pack=False, **settings)


async def write(engine, handle, name="a"):
    keys = stream_keys(range(3), name)
    [found] = await engine.generate([GenerateRequest(handle, keys, Sampling(), 8)], Account())
    return [(c.text, c.tokens, c.logprobs) for c in found]


async def label(engine, handle, trace):
    [found] = await engine.label([LabelRequest(handle, "so", ("1", "2"), trace=trace)], Account())
    return found


@pytest.mark.parametrize("settings", [{}, {"max_batch_tokens": 3}, {"offload": "cpu"}], ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", PLACES)
async def test_rows_of_a_broken_pass_are_not_used_again(place, value, settings):
    with make(**settings) as engine, make(**settings) as fresh:
        handle, wanted = engine.open(PROMPT, Account()), fresh.open(PROMPT, Account())
        hook = PLACES[place](engine.forward.model).register_forward_hook(
            lambda module, given, out: torch.full_like(out, value)
        )
        for broken in (write(engine, handle), label(engine, handle, False), label(engine, handle, True)):
            with pytest.raises(EngineError, match="not numbers"):
                await broken
        hook.remove()
        assert engine.usage.kv_bytes == 0
        assert await label(engine, handle, True) == await label(fresh, wanted, True)
        assert await write(engine, handle) == await write(fresh, wanted)
        engine.check_integrity()


async def test_paths_computed_before_a_broken_pass_stay():
    with make() as engine:
        handle = engine.open(PROMPT, Account())
        before = await write(engine, handle)
        held = engine.usage.kv_bytes
        hook = engine.forward.model.lm_head.register_forward_hook(
            lambda *given: torch.full_like(given[-1], float("nan"))
        )
        with pytest.raises(EngineError, match="not numbers"):
            await write(engine, handle, "b")
        hook.remove()
        assert engine.usage.kv_bytes > held // 2
        assert await write(engine, handle) == before
        engine.check_integrity()
