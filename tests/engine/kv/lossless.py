"""Engines that draft on compressed KV, and requests to them."""

import asyncio
from typing import ClassVar

import numpy as np

from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine.base import GenerateRequest, Sampling
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.base import PathPolicy
from rksc_tot.policies.compression.random_attention import RandomAttention
from rksc_tot.policies.compression.snapkv import SnapKV
from rksc_tot.policies.compression.streaming_llm import Streaming

HOT = Sampling(temperature=1.2)
PROMPTS = ("say", "say yes no", "é\n")


class Nonsense(PathPolicy):
    """A policy that keeps only the first tokens, so that drafts are useless."""

    name: ClassVar[str] = "nonsense"

    def select(self, view, budget, rng):
        return np.arange(min(budget, len(view)))


POLICIES = {
    "random_attention": RandomAttention(budget=12, recent=3),
    "random_attention, one set": RandomAttention(budget=9, recent=2, pin_prompt=False, sets="one"),
    "streaming": Streaming(budget=10, recent=2, pin_prompt=False),
    "snapkv": SnapKV(budget=10, recent=3, pin_prompt=False),
    "arborkv": ArborKV(tail=1, sinks=0),
    "arborkv, lossy": ArborKV(tail=0, sinks=0, rehydrate=False, within="random"),
    "nonsense": Nonsense(budget=1, recent=1, pin_prompt=False),
}
NONSENSE = POLICIES["nonsense"]


def written(completions):
    return [(c.text, c.tokens, c.branches, c.finish, c.logprobs) for c in completions]


def held(engine, handles):
    """Rows that the handles hold. No other row is resident, and none after the handles are released."""
    engine.check_integrity()
    assert [s for s in engine.cache.segments() if s.pins] == []
    assert engine.usage.waiting == 0
    tops = {segment.parent for segment in engine.cache.segments() if segment.start == 0}
    assert tops <= {engine.cache.origin}  # no draft copy is left
    engine.clear()
    rows = engine.cache.residency.pool.used
    for handle in handles:
        engine.release(handle)
    engine.check_integrity()
    engine.clear()
    assert list(engine.cache.segments()) == []
    assert engine.cache.residency.pool.used == 0
    return rows


def run(engine, work):
    with engine:
        return asyncio.run(work(engine))


def ask(handle, name="s", k=4, max_tokens=40, sampling=HOT, **options):
    return GenerateRequest(handle, stream_keys(range(k), name), sampling, max_tokens, **options)


async def grow(engine, account, *names, **options):
    """Requests for one prompt, made together."""
    root = engine.open("say yes", account)
    replies = await engine.generate([ask(root, name, **options) for name in names], account)
    rows = held(engine, [root, *(c.handle for reply in replies for c in reply)])
    return [written(reply) for reply in replies], rows
