"""Copies of paths without the KV of some tokens: the rest of the KV and the original path are unchanged."""

from importlib.resources import files

import pytest
import torch
from transformers import AutoModelForCausalLM

from rksc_tot import load_engine
from rksc_tot.core.errors import CacheError, ConfigError
from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine.base import Account, GenerateRequest, LabelRequest, Sampling
from rksc_tot.evaluation.arborkv.ablated_paths import copies_without
from rksc_tot.evaluation.arborkv.fit import MEASURING
from rksc_tot.tasks.game24.prompts import QUESTION

PROMPT, THOUGHT = "steps 4 5 6 10\n", "10 - 4 = 6 (left: 5 6 6)\n"
LABELS = ("sure", "likely", "impossible")


@pytest.fixture
async def path(engine):
    """A prompt and a thought, resident as a whole."""
    prompt = engine.open(PROMPT, Account())
    thought = engine.extend(prompt, THOUGHT)
    await written(engine, [thought])
    yield thought
    engine.release(thought)
    engine.release(prompt)


async def written(engine, handles, temperature=1.0):
    """What four branches write after each path, and how likely it was."""
    requests = [
        GenerateRequest(handle, stream_keys(range(4), "without"), Sampling(temperature=temperature), 16, ("\n",))
        for handle in handles
    ]
    replies = await engine.generate(requests, Account())
    for completions in replies:
        for completion in completions:
            engine.release(completion.handle)
    return [[(one.text, one.branches, one.logprobs) for one in completions] for completions in replies]


async def asked(engine, handles):
    return [
        found.probabilities
        for found in await engine.label([LabelRequest(handle, QUESTION, LABELS) for handle in handles], Account())
    ]


async def test_a_copy_without_a_gap_gives_equal_logits(engine, path):
    before = await written(engine, [path])
    async with copies_without(engine, [(path, range(0))]) as copies:
        assert await written(engine, copies) == before
        assert await asked(engine, copies) == await asked(engine, [path])


async def test_the_gap_is_not_attended_to_and_the_other_kv_is_unchanged(engine, path):
    """Against the model itself, whose last row alone does not see these positions."""
    tokens, gap = path.tokens, range(path.prompt_end, path.length - 1)
    model = AutoModelForCausalLM.from_pretrained(files("rksc_tot.tasks.game24") / "weights", dtype=torch.float32)
    seen = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
    seen[-1, gap.start : gap.stop] = False
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    with torch.inference_mode():
        logits = model(torch.tensor([tokens]), attention_mask=mask[None, None]).logits[0, -1]
    async with copies_without(engine, [(path, gap)]) as copies:
        [[(text, _, logprobs)]] = await written(engine, copies, temperature=0)
    log_p = logits.double().log_softmax(-1)
    assert logprobs[0] == pytest.approx(float(log_p.max()), abs=1e-4)
    assert text.startswith(engine.tokenizer.decode([int(log_p.argmax())]).lstrip())


async def test_different_gaps_give_different_logits(engine, path):
    gaps = [range(path.prompt_end, path.length - 1), range(1, path.prompt_end)]
    async with copies_without(engine, [(path, range(0)), *((path, gap) for gap in gaps)]) as copies:
        full, thought, prompt = await asked(engine, copies)
    assert max(abs(full[label] - thought[label]) for label in LABELS) > 0.01
    assert thought != prompt


async def test_the_original_path_is_unchanged(engine, path):
    before, held = await written(engine, [path]), engine.usage.kv_bytes
    async with copies_without(engine, [(path, range(path.prompt_end, path.length - 1))] * 3) as copies:
        await written(engine, copies)
        assert engine.usage.kv_bytes > held
    engine.clear()
    assert all(segment.whole for segment in path.segment.lineage())
    assert await written(engine, [path]) == before


async def test_copies_are_dropped_when_the_block_ends_or_raises(engine, path):
    engine.clear()
    held = engine.usage.kv_bytes
    seen = []

    async def use():
        async with copies_without(engine, [(path, range(8, 12))]) as copies:
            seen.extend(copies)
            await written(engine, copies)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await use()
    assert engine.usage.kv_bytes == held
    assert seen[0].released


async def test_a_path_with_missing_kv_is_refused(engine, path):
    engine.clear()
    with engine.engine_thread.books():
        engine.cache.residency.compress(path.segment, [len(path.segment.kv.slots) - 1])
    with pytest.raises(ConfigError, match="does not fit the KV budget - raise"):
        async with copies_without(engine, [(path, range(0))]):
            pytest.fail("it was copied")


async def test_copies_compressed_during_the_block_are_an_error(engine, path):
    async def use():
        async with copies_without(engine, [(path, range(8, 12))]) as copies:
            with engine.engine_thread.books():
                engine.cache.residency.compress(copies[0].segment, [0, len(copies[0].segment.kv.slots) - 1])

    with pytest.raises(ConfigError, match="does not fit the KV budget - raise"):
        await use()


async def test_no_room_for_the_copies_is_an_error_and_leaks_nothing():
    with load_engine(compress=MEASURING, kv_budget=40 * 6144) as small:
        prompt = small.open(PROMPT, Account())
        await asked(small, [prompt])
        with pytest.raises(CacheError, match="raise the KV budget"):
            async with copies_without(small, [(prompt, range(0))] * 9):
                pytest.fail("it was copied")
        small.release(prompt)
        small.clear()
        assert small.usage.kv_bytes == 0
        small.check_integrity()
