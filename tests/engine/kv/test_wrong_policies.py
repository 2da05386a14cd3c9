"""A wrong compression policy ends only the request that it was called for."""

import asyncio
from typing import ClassVar

import numpy as np
import pytest

from rksc_tot.core.errors import CompressionError, ConfigError
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account, LabelRequest
from rksc_tot.policies.compression.base import CompressionPolicy, PathPolicy
from rksc_tot.policies.compression.random_attention import RandomAttention
from rksc_tot.policies.compression.snapkv import SnapKV
from rksc_tot.policies.compression.streaming_llm import Streaming
from tests.engine.conftest import PER_TOKEN, mistral
from tests.engine.kv.compressed import LONG, Levelling, ask, texts


def wrong(kind):
    """Wrong results of a policy instead of ``[n]`` ascending tokens."""
    return {
        "unsorted": lambda kept, n: kept[::-1],
        "repeated": lambda kept, n: np.sort(np.r_[kept[:1], kept[:-1]]),
        "foreign": lambda kept, n: np.r_[kept[:-1], n + 3],
        "below nought": lambda kept, n: np.r_[-1, kept[1:]],
        "too many": lambda kept, n: np.arange(n),
        "too few": lambda kept, n: kept[:-1],
        "floats": lambda kept, n: kept / 1,
        "a list": lambda kept, n: kept.tolist(),
        "nothing": lambda kept, n: None,
        "raises": lambda kept, n: 1 // 0,
        "exits": lambda kept, n: exit(3),
    }[kind]


FAULTS = {
    "unsorted": "returned tokens that do not ascend",
    "repeated": "keeps a token twice",
    "foreign": r"keeps token \d+ of \d+, counted from 0",
    "below nought": r"keeps token -1 of \d+, counted from 0",
    "too many": r"keeps \d+ of \d+ tokens, more than the required \d+",
    "too few": r"keeps \d+ of \d+ tokens, fewer than the required \d+",
    "floats": r"returned array\(\[[\s\S]*\), not an array of integers",
    "a list": r"returned \[.*\], not an array of integers",
    "nothing": "returned None, not an array of integers",
    "raises": r"its select, with \d+ tokens and a budget of \d+, raised ZeroDivisionError: ",
    "exits": r"its select, with \d+ tokens and a budget of \d+, raised SystemExit: 3",
}


class WrongPath(PathPolicy):
    name: ClassVar[str] = "wrong"
    fault: str

    def select(self, view, budget, rng):
        return wrong(self.fault)(np.arange(budget), len(view))


class WrongTree(Levelling):
    name: ClassVar[str] = "wrong"
    fault: str

    def select(self, view, budget, rng):
        return wrong(self.fault)(np.arange(min(budget, len(view))), len(view)) if budget else np.arange(0)


async def settled(engine, *handles):
    """Books balance, no segment is pinned, and no KV is left after these handles are released."""
    engine.check_integrity()
    assert [segment for segment in engine.cache.segments() if segment.pins] == []
    assert engine.usage.waiting == 0
    for handle in handles:
        engine.release(handle)
    engine.clear()
    assert list(engine.cache.segments()) == []
    assert engine.cache.residency.pool.used == 0


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_wrong_selection_ends_its_own_generation_only(make, fault):
    policy = WrongPath(fault=fault, budget=20, recent=3, pin_prompt=False)
    with make() as engine:
        (plain,) = await engine.generate([ask(engine.open("say", Account()), max_tokens=15)], Account())
    with make(compress=policy) as engine:
        short, long = (engine.open(text, Account()) for text in ("say", "no, " + LONG))
        label = LabelRequest(long, " ok", ("yes", "no"))
        found, failed, told = await asyncio.gather(
            engine.generate([ask(short, max_tokens=15)], Account()),
            engine.generate([ask(long)], Account()),
            engine.label([label], Account()),
            return_exceptions=True,
        )
        assert isinstance(failed, CompressionError)
        with pytest.raises(CompressionError, match=f"^compression policy 'wrong':? {FAULTS[fault]}"):
            raise failed
        assert texts(found[0]) == texts(plain)
        assert told[0] is not None
        await settled(engine, short, long, *(completion.handle for completion in found[0]))


ALLOTMENTS = {
    "too few": (lambda blocks: [0] * (len(blocks) - 1), r"allots to \d+ blocks, there are \d+"),
    "too many": (lambda blocks: [0] * (len(blocks) + 1), r"allots to \d+ blocks, there are \d+"),
    "more than there is": (lambda blocks: [b.tokens + 1 for b in blocks], r"allots \d+ to a block of \d+ tokens"),
    "less than nothing": (lambda blocks: [-1 for _ in blocks], r"allots -1 to a block of \d+ tokens"),
    "a fraction": (lambda blocks: [0.5 for _ in blocks], r"allots 0\.5 to a block of \d+ tokens"),
    "what is protected": (lambda blocks: [0 for _ in blocks], r"allots 0 to a protected block of \d+ tokens"),
    "and clears the blocks": (lambda blocks: blocks.clear(), r"its allot, .* raised AttributeError: "),
    "nothing at all": (lambda blocks: None, r"its allot, .* raised TypeError: "),
    "raises": (lambda blocks: 1 // 0, r"its allot, with \d+ blocks and a budget of \d+, raised ZeroDivisionError: "),
}


class WrongAllotment(Levelling):
    name: ClassVar[str] = "wrong"
    fault: str

    def allot(self, blocks, budget):
        return ALLOTMENTS[self.fault][0](blocks)


async def cramped(engine, sentence):
    """One search fills the cache. A request that needs room fails with the reason; other requests continue."""
    mine, other = Account(), Account()
    root = engine.open(LONG, mine)
    (found,) = await engine.generate([ask(root, "a", k=3)], mine)
    with pytest.raises(CompressionError, match=f"^compression policy 'wrong':? {sentence}"):
        await engine.generate([ask(found[0].handle, "b", k=3)], mine)
    (few,) = await engine.generate([ask(root, "c", k=1, max_tokens=1)], other)
    assert len(few) == 1
    await settled(engine, root, *(completion.handle for completion in (*found, *few)))


@pytest.mark.parametrize("fault", ["unsorted", "foreign", "too many", "floats", "raises"])
async def test_a_wrong_selection_ends_the_request_that_needs_room_only(make, fault):
    with make(compress=WrongTree(fault=fault, rehydrate=False), kv_budget=180 * PER_TOKEN) as engine:
        await cramped(engine, FAULTS[fault])


@pytest.mark.parametrize("fault", ALLOTMENTS)
async def test_a_wrong_allotment_ends_the_request_that_needs_room_only(make, fault):
    with make(compress=WrongAllotment(fault=fault), kv_budget=180 * PER_TOKEN) as engine:
        await cramped(engine, ALLOTMENTS[fault][1])


class Neither(CompressionPolicy):
    name: ClassVar[str] = "neither"

    def select(self, view, budget, rng):
        raise NotImplementedError


class ByHead(Levelling):
    name: ClassVar[str] = "by_head"
    per_head: ClassVar[bool] = True


@pytest.mark.parametrize("policy", [RandomAttention(), SnapKV()])
def test_per_head_selection_is_refused_for_models_with_a_window(tokenizer, policy):
    with pytest.raises(
        ConfigError, match=f"'{policy.name}' keeps other tokens in every head, and windowed has a window of 8"
    ):
        TransformersEngine(mistral(len(tokenizer)), tokenizer, name="windowed", compress=policy)


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (
            Neither(),
            "compression policy 'neither' compresses neither paths nor trees - derive it from PathPolicy or TreePolicy",
        ),
        (
            ByHead(),
            "compression policy 'by_head' keeps other tokens in every head, and thoughts .* keep one set of tokens",
        ),
    ],
)
def test_a_policy_that_does_not_fit_the_model_is_refused_with_the_reason(make, policy, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make(compress=policy)


def test_a_prompt_that_leaves_no_room_is_refused_with_the_budget_it_needs(make):
    with make(compress=Streaming(budget=22)) as engine:
        with pytest.raises(ConfigError, match="has 22 - set budget to 23 at least"):
            engine.open(LONG, Account())
        assert list(engine.cache.segments()) == []
