"""Random work on an engine, compared with a shadow of its passes."""

import random
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
import transformers as t

from rksc_tot.core.errors import CacheError
from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account, GenerateRequest, LabelRequest, Sampling
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.random_attention import RandomAttention
from rksc_tot.policies.compression.snapkv import SnapKV
from rksc_tot.policies.compression.streaming_llm import Streaming
from tests.engine.conftest import byte_tokenizer
from tests.engine.shadow import Shadow

TOKENIZER = byte_tokenizer()


SHAPE = {
    "vocab_size": len(TOKENIZER), "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.2, "bos_token_id": None,
    "pad_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


GEMMA = {**SHAPE, "head_dim": 12, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 12}


FAMILIES = {
    "llama": lambda: t.LlamaConfig(**SHAPE),
    "qwen2": lambda: t.Qwen2Config(**SHAPE),
    "gpt2": lambda: t.GPT2Config(
        n_embd=48, n_layer=2, n_head=4, n_positions=256, vocab_size=len(TOKENIZER), initializer_range=0.2, bos_token_id=None,
        eos_token_id=2,
    ),
    "mistral": lambda: t.MistralConfig(**SHAPE, sliding_window=8),
    "gemma2": lambda: t.Gemma2Config(**GEMMA, sliding_window=8),
}  # fmt: skip


PER_HEAD = {
    "random_attention": RandomAttention(budget=12, recent=3),
    "snapkv": SnapKV(budget=10, recent=2, pin_prompt=False),
}


ONE_SET = {
    "random_attention, one set": RandomAttention(budget=10, recent=3, sets="one", pin_prompt=False),
    "streaming": Streaming(budget=12, recent=2),
    "arborkv": ArborKV(tail=1, sinks=1, within="random", theta=(1, 0, 0)),
    "arborkv, lossy": ArborKV(tail=0, sinks=0, rehydrate=False, within="random", theta=(1, 0, 0)),
}


TIGHT = 60  # tokens of KV, so that room must be made all the time


PROMPTS = ("say", "say yes no")


HOT = Sampling(temperature=1.2)


def build(family):
    torch.manual_seed(0)
    return t.AutoModelForCausalLM.from_config(FAMILIES[family](), dtype=torch.float32).eval()


def unshadowed(family, tokens=None, route="fast", **options):
    """An engine; ``tokens`` of KV."""
    if tokens is not None:
        options["kv_budget"] = tokens * 2 * 2 * 2 * 12 * 4 * (2 if family == "gpt2" else 1)
    engine = TransformersEngine(build(family), TOKENIZER, name=family, pack=family != "gpt2", **options)
    assert engine.capabilities.route == "fast"
    engine.forward.take(route)
    return engine


def shadowed(family, *room_and_route, **options):
    """An engine with its shadow."""
    engine = unshadowed(family, *room_and_route, **options)
    return engine, Shadow(engine, build(family))


class Program:
    """Random work on an engine. Each result is compared with the shadow."""

    OPERATIONS: ClassVar = {
        "write": 6,
        "again": 3,
        "label": 4,
        "extend": 1,
        "release": 2,
        "reduce": 4,
        "evict": 2,
        "rehydrate": 2,
    }

    def __init__(self, engine, shadow, seed):
        self.engine, self.shadow, self.rng = engine, shadow, random.Random(seed)
        self.account = Account()
        self.handles = [engine.open(text, self.account) for text in PROMPTS]
        self.asked = []
        self.seen = []  # whether each completion was exact
        self.answers = []  # likewise of each question

    async def play(self, steps):
        names, weights = zip(*self.OPERATIONS.items(), strict=True)
        for name in self.rng.choices(names, weights, k=steps):
            await getattr(self, name)()
            self.engine.check_integrity()
            self.shadow.check()
            assert self.shadow.worst < 1e-4
            assert self.shadow.inexact == self.account.ledger.compression.rows
        for handle in self.handles:
            self.engine.release(handle)
        self.engine.clear()
        assert self.engine.cache.residency.pool.used == 0

    async def write(self):
        for _ in range(self.rng.choice((1, 1, 2))):
            sampling = self.rng.choice((Sampling(temperature=0), Sampling(temperature=0.4), HOT))
            streams = stream_keys(range(self.rng.randint(1, 3)), self.rng.randrange(3))
            self.asked.append((self.rng.choice(self.handles), streams, sampling, self.rng.choice((1, 3, 8, 16))))
        await self.generate(self.asked[-self.rng.choice((1, 2)) :])

    async def again(self):
        """Generate again from an earlier start, with equal tokens at first."""
        known = [asked for asked in self.asked if asked[0] in self.handles]
        if known:
            handle, streams, sampling, tokens = self.rng.choice(known)
            await self.generate([(handle, streams, sampling, max(1, tokens + self.rng.randint(-2, 4)))])

    async def generate(self, asked):
        requests = [GenerateRequest(*what) for what in asked if what[0] in self.handles and what[0].length < 80]
        try:
            replies = await self.engine.generate(requests, self.account)
        except CacheError:  # one path is too much
            return
        assert all(said == was for said, was in self.shadow.said)
        for completion in [completion for reply in replies for completion in reply]:
            if completion.exact:
                self.compare(completion)
            self.seen.append(completion.exact)
            self.handles.append(completion.handle)

    def compare(self, completion):
        """Exact results must equal those of a plain pass."""
        path = completion.handle.tokens
        with torch.inference_mode():
            plain = self.shadow.model(input_ids=torch.tensor([path]), use_cache=False).logits[0].log_softmax(-1)
        first = len(path) - len(completion.tokens)
        drawn = plain[range(first - 1, len(path) - 1), path[first:]].tolist()
        assert completion.logprobs[: len(drawn)] == pytest.approx(drawn, abs=1e-4)

    async def label(self):
        """Ask a question, then ask it again as an audit on full KV. An exact answer must equal that of a plain pass."""
        handle = self.rng.choice(self.handles)
        request = LabelRequest(handle, " ok", ("yes", "no"), trace=self.engine.layers > 0 and self.rng.random() < 0.3)
        path = [*handle.tokens, *TOKENIZER.encode(" ok", add_special_tokens=False)]
        with suppress(CacheError):
            reply, asked = await self.ask(request)
            assert asked == (2, handle.length, not reply.exact)
            assert request.trace or reply.exact == self.shadow.exact[tuple(path)]
            assert not reply.exact or reply.probabilities == pytest.approx(self.plain(request, path), abs=1e-4)
            self.answers.append(reply.exact)
            reply, asked = await self.ask(replace(request, audit=True))
            assert asked == (0, 0, 0)
            assert reply.exact
            assert reply.probabilities == pytest.approx(self.plain(request, path), abs=1e-4)

    async def ask(self, request):
        """The answer, with the booked layers and context tokens, and the number of inexact answers."""
        before = self.account.ledger.model_copy(deep=True)
        (reply,) = await self.engine.label([request], self.account)
        now = self.account.ledger
        layers, context = now.verifier_layers - before.verifier_layers, now.context_tokens - before.context_tokens
        return reply, (layers, context, now.scores.acted - before.scores.acted)

    def plain(self, request, path):
        with torch.inference_mode():
            mass = self.shadow.model(input_ids=torch.tensor([path]), use_cache=False).logits[0, -1].double().softmax(-1)
        of = {label: float(mass[TOKENIZER.convert_tokens_to_ids(f"Ġ{label}")]) for label in request.labels}
        return {label: part / sum(of.values()) for label, part in of.items()}

    async def extend(self):
        handle = self.rng.choice(self.handles)
        if handle.length < 80:
            self.handles.append(self.engine.extend(handle, self.rng.choice((" yes", " no.", "abc"))))

    async def release(self):
        while len(self.handles) > 8:
            self.engine.release(self.handles.pop(self.rng.randrange(len(self.handles))))

    async def reduce(self):
        """Compress KV at random, as a policy might at any time."""
        with self.engine.engine_thread.books():
            stored = [segment for segment in self.engine.cache.segments() if segment.kv.slots]
            if stored:
                segment = self.rng.choice(stored)
                kept = [n for n in range(len(segment.kv.slots)) if self.rng.random() < 0.7]
                self.engine.cache.residency.compress(segment, kept)

    async def evict(self):
        with self.engine.engine_thread.books(), suppress(CacheError):
            pool = self.engine.cache.residency.pool
            self.engine.cache.room.make_room(min(pool.limit, pool.available + self.rng.randint(1, 30)))

    async def rehydrate(self):
        handle = self.rng.choice(self.handles)
        assert await self.engine.rehydrate([handle], self.account) == [True]
        assert all(segment.whole for segment in handle.segment.lineage())
        before = len(self.seen)
        await self.generate([(handle, stream_keys(range(1), "x"), HOT, 1)])
        assert all(self.seen[before:])


async def play(family, route, policy, seed, steps, **options):
    compress = {**PER_HEAD, **ONE_SET}[policy]
    engine, shadow = shadowed(
        family, TIGHT if isinstance(compress, ArborKV) else 400, route, compress=compress, **options
    )
    with engine:
        if engine.offload_store is not None:
            engine.offload_store.costs.copy_is_cheaper = lambda *_: True
        program = Program(engine, shadow, seed)
        await program.play(steps)
    return program
