"""``exact`` is what it says: everything was computed on the KV of the full path. And what is computed on less is what the
model gives on exactly that.
"""

import asyncio
import random
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
import transformers as t

from rksc_tot import load_engine, solve
from rksc_tot.core.errors import CacheError
from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account, GenerateRequest, LabelRequest, Sampling
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.random_attention import RandomAttention
from rksc_tot.policies.compression.snapkv import SnapKV
from rksc_tot.policies.compression.streaming_llm import Streaming
from rksc_tot.strategies import BFS
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
    """Random work on an engine, each part of which is held against the shadow."""

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
        assert self.engine.cache.pool.used == 0

    async def write(self):
        for _ in range(self.rng.choice((1, 1, 2))):
            sampling = self.rng.choice((Sampling(temperature=0), Sampling(temperature=0.4), HOT))
            streams = stream_keys(range(self.rng.randint(1, 3)), self.rng.randrange(3))
            self.asked.append((self.rng.choice(self.handles), streams, sampling, self.rng.choice((1, 3, 8, 16))))
        await self.generate(self.asked[-self.rng.choice((1, 2)) :])

    async def again(self):
        """Write from where something was written before, the same to begin with."""
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
        """What is exact is what a plain pass gives."""
        path = completion.handle.tokens
        with torch.inference_mode():
            plain = self.shadow.model(input_ids=torch.tensor([path]), use_cache=False).logits[0].log_softmax(-1)
        first = len(path) - len(completion.tokens)
        drawn = plain[range(first - 1, len(path) - 1), path[first:]].tolist()
        assert completion.logprobs[: len(drawn)] == pytest.approx(drawn, abs=1e-4)

    async def label(self):
        """Ask a question, then again as an audit on all KV; an exact reply equals that of a plain pass."""
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
        """The answer; layers and tokens of context that were booked, and answers that are not exact."""
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
        """What a policy might do at any time."""
        with self.engine.engine_thread.books():
            stored = [segment for segment in self.engine.cache.segments() if segment.slots]
            if stored:
                segment = self.rng.choice(stored)
                kept = [n for n in range(len(segment.slots)) if self.rng.random() < 0.7]
                self.engine.cache.reduce(segment, kept)

    async def evict(self):
        with self.engine.engine_thread.books(), suppress(CacheError):
            pool = self.engine.cache.pool
            self.engine.cache.make_room(min(pool.limit, pool.available + self.rng.randint(1, 30)))

    async def rehydrate(self):
        handle = self.rng.choice(self.handles)
        assert await self.engine.rehydrate([handle], self.account) == [True]
        assert all(segment.whole for segment in handle.segment.lineage())
        before = len(self.seen)
        await self.generate([(handle, stream_keys(range(1), "x"), HOT, 1)])
        assert all(self.seen[before:])


CASES = [
    *(("llama", "fast", policy) for policy in (*ONE_SET, *PER_HEAD)),
    *((family, "fast", "random_attention, one set") for family in FAMILIES if family != "llama"),
    *((family, "fast", "arborkv") for family in ("mistral", "gemma2")),
    ("qwen2", "fast", "snapkv"),
    ("llama", "mask", "random_attention"),
    ("gemma2", "mask", "arborkv, lossy"),
    ("mistral", "mask", "streaming"),
]


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


@pytest.mark.parametrize(("family", "route", "policy"), CASES)
async def test_what_is_said_to_be_exact_is_and_nothing_else(family, route, policy):
    program = await play(family, route, policy, f"{family}{policy}", 30)
    assert any(program.seen)
    assert all(program.seen) == (policy == "arborkv")
    assert all(program.answers) or policy != "arborkv"
    assert (program.shadow.inexact == 0) == (policy == "arborkv")
    assert program.shadow.looked > 25


@pytest.mark.parametrize("policy", ["arborkv", "arborkv, lossy", "random_attention", "streaming"])
async def test_what_comes_back_from_a_store_is_exact(policy):
    program = await play("llama", "fast", policy, f"back {policy}", 40, offload="cpu")
    assert program.shadow.restored > 0
    assert all(program.seen) == (policy == "arborkv")


POLICIES = (*ONE_SET, *PER_HEAD)


@pytest.mark.parametrize(("policy", "seed"), [
    *zip(POLICIES, range(len(POLICIES)), strict=True),
    *(pytest.param(policy, seed, marks=pytest.mark.slow) for policy in POLICIES for seed in range(6, 20)),
])  # fmt: skip
async def test_what_is_said_to_be_exact_is_exact_however_passes_are_cut(policy, seed):
    rng = random.Random(seed)
    rows = rng.choice((1, 3, 7, 64))
    assert any(
        (await play("llama", "fast", policy, seed, 25, max_batch_tokens=rows, offload=rng.choice((None, "cpu")))).seen
    )


# -- what is made whole before it is read on -----------------------------------------------------------------------------


async def wander(engine, account):
    """Branches grown from each other's ends, again and again; the questions between see what a path gives."""
    handles, found = [engine.open(text, account) for text in PROMPTS], []
    for turn in range(4):
        requests = [GenerateRequest(handles[-1 - n], stream_keys(range(3), turn, n), HOT, 9) for n in range(2)]
        requests.append(GenerateRequest(handles[turn], stream_keys(range(2), turn), Sampling(temperature=0), 9))
        replies = await engine.generate(requests, account)
        found += [(c.text, c.tokens, c.branches, c.finish, c.logprobs, c.exact) for reply in replies for c in reply]
        handles += [c.handle for reply in replies for c in reply]
        asked = [LabelRequest(handle, " ok", ("yes", "no")) for handle in handles[::3]]
        found += await engine.label(asked, account)
    return found


@pytest.mark.parametrize(("family", "rows"), [("llama", 2048), ("llama", 3), ("mistral", 7)])
async def test_rehydrated_paths_give_the_bits_they_give_where_nothing_was_reduced(family, rows):
    with unshadowed(family) as engine:
        assert engine.numerics["batch_invariant"]
        plain = await wander(engine, Account())
    engine, shadow = shadowed(family, 90, compress=ONE_SET["arborkv"], max_batch_tokens=rows)
    with engine:
        account = Account()
        assert await wander(engine, account) == plain
        assert account.ledger.compression.acted > 10
        assert shadow.inexact == account.ledger.compression.rows == 0
        assert engine.cache.pool.peak <= 90


@pytest.mark.parametrize("policy", [*PER_HEAD, *ONE_SET])
async def test_a_lossy_path_that_is_rehydrated_is_exact_again(policy):
    compress = {**PER_HEAD, **ONE_SET}[policy]
    engine, shadow = shadowed("llama", TIGHT if isinstance(compress, ArborKV) else None, compress=compress)
    with engine:
        account = Account()
        root = engine.open("say yes no", account)
        ((found,),) = await engine.generate([GenerateRequest(root, (1,), HOT, 30)], account)
        (others,) = await engine.generate([GenerateRequest(root, (2, 3), HOT, 16)], account)  # want the room
        before = account.ledger.prefill_tokens
        assert await engine.rehydrate([found.handle, *(c.handle for c in others)][:1], account) == [True]
        assert all(segment.whole for segment in found.handle.segment.lineage())
        assert account.ledger.prefill_tokens > before
        ((again,),) = await engine.generate([GenerateRequest(found.handle, (4,), HOT, 1)], account)
        assert again.exact
        shadow.check()
        before = account.ledger.prefill_tokens
        assert await engine.rehydrate([found.handle], account) == [True]
        assert account.ledger.prefill_tokens == before  # there was nothing to do


@pytest.mark.parametrize(("policy", "rows"), [
    *((policy, 2048) for policy in (*PER_HEAD, "streaming")),
    ("snapkv", 16), ("random_attention", 7), ("streaming", 3), ("random_attention", 1),
])  # fmt: skip
async def test_a_path_may_be_made_whole_while_others_write_on_it(policy, rows):
    engine, shadow = shadowed("llama", None, compress={**PER_HEAD, **ONE_SET}[policy], max_batch_tokens=rows)
    with engine:
        account = Account()
        root = engine.open("say yes no", account)
        ((found,),) = await engine.generate([GenerateRequest(root, (1,), HOT, 30)], account)
        assert any(segment.kept is not None for segment in found.handle.segment.lineage())
        writing = engine.generate([GenerateRequest(found.handle, (2, 3), HOT, 30)], account)
        (reply,), *whole = await asyncio.gather(
            writing, *(rehydrate_in_a_while(engine, found.handle, n) for n in range(5))
        )
        assert whole == [[True]] * 5
        assert all(said == was for said, was in shadow.said)
        shadow.check()
        engine.check_integrity()
        assert [s for s in engine.cache.segments() if s.pins] == []
        for handle in (root, found.handle, *(completion.handle for completion in reply)):
            engine.release(handle)
        engine.clear()
        assert engine.cache.pool.used == 0


async def test_what_was_drawn_upon_less_is_not_exact_though_its_path_is_made_whole():
    engine, shadow = shadowed("llama", 400, compress=Streaming(budget=300))
    with engine:
        account = Account()
        root = engine.open("say yes no", account)
        await engine.generate([GenerateRequest(root, (1,), HOT, 1)], account)
        with engine.engine_thread.books():
            engine.cache.reduce(root.segment, [0, len(root.tokens) - 1])
        writing = asyncio.create_task(engine.generate([GenerateRequest(root, (2,), HOT, 20)], account))
        while engine.usage.passes < 6:
            await asyncio.sleep(0)
        with engine.engine_thread.books():
            engine.cache.rewind(root.segment)
        ((found,),) = await writing
        assert shadow.exact[max((path for _, path in shadow.drawn), key=len)]  # the last of it
        assert not found.exact
        assert shadow.said[-1] == (False, False)


async def test_what_a_thought_gave_before_its_path_was_made_whole_is_not_drawn_from_afterwards():
    engine, shadow = shadowed("llama", 400, compress=Streaming(budget=300))
    with engine:
        account = Account()
        root = engine.open("say yes no", account)
        await engine.generate([GenerateRequest(root, (1,), HOT, 1)], account)
        with engine.engine_thread.books():
            engine.cache.reduce(root.segment, [0])
        middle = engine.extend(root, " yes")
        below = engine.extend(middle, " no.")
        writing = asyncio.create_task(engine.generate([GenerateRequest(below, (2,), HOT, 60)], account))
        while middle.place is None or middle.segment.logits is None:
            await asyncio.sleep(0)
        engine.release(middle)  # what it gave stays, as work runs below
        assert await engine.rehydrate([below], account) == [True]
        again = engine.extend(root, " yes")
        ((found,),) = await engine.generate([GenerateRequest(again, (3,), HOT, 1)], account)
        assert shadow.said[-1] == (found.exact, found.exact) == (True, True)
        assert not writing.done()
        await writing


async def test_a_path_is_made_whole_though_others_ask_for_less_of_it():
    engine, shadow = shadowed("llama", 400, compress=Streaming(budget=300), max_batch_tokens=1)
    with engine:
        account = Account()
        root = engine.open("say yes no", account)
        below = engine.extend(root, " yes no.")
        await engine.generate([GenerateRequest(below, (1,), HOT, 1)], account)
        with engine.engine_thread.books():
            engine.cache.reduce(root.segment, [0])
            below.segment.logits = None
        request = GenerateRequest(below, (2,), HOT, 1)
        (((found,),), whole) = await asyncio.gather(
            engine.generate([request], account), engine.rehydrate([below], account)
        )
        assert (found.exact, whole) == (False, [True])
        assert all(segment.whole for segment in below.segment.lineage())
        shadow.check()


async def rehydrate_in_a_while(engine, handle, n):
    until = engine.usage.passes + 4 * n
    while engine.usage.passes < until:
        await asyncio.sleep(0)
    return await engine.rehydrate([handle], Account())


async def test_where_exact_kv_comes_back_logits_that_are_not_do_not_stay():
    engine, shadow = shadowed("llama", 400, compress=Streaming(budget=300), offload="cpu")
    with engine:
        costs, account = engine.offload_store.costs, Account()
        root = engine.open("say yes no", account)
        above = engine.extend(root, " yes")
        below = engine.extend(above, " no.")

        async def write(handle):
            ((found,),) = await engine.generate([GenerateRequest(handle, (1,), HOT, 1)], account)
            return found.exact

        assert await write(below)
        with engine.engine_thread.books():
            engine.cache.make_room(400)  # all of it is exact, and goes to the store
        costs.copy_is_cheaper = lambda *_: False
        assert await write(root)
        with engine.engine_thread.books():
            engine.cache.reduce(root.segment, [0, 3])
        assert not await write(above)
        costs.copy_is_cheaper = lambda *_: True
        assert await engine.rehydrate([below], account) == [True]
        assert shadow.restored > 0
        assert await write(above)
        assert all(said == was for said, was in shadow.said)
        shadow.check()


@pytest.mark.parametrize("rehydrate", [True, False])
def test_nodes_of_the_embedded_model_say_so(rehydrate):
    search = {"strategy": BFS(b=2, k=6), "verifier": "lm_value"}
    with load_engine() as engine:
        plain = solve("game24", "4 5 6 10", engine=engine, **search)
    compress = ArborKV(tail=0, sinks=0, rehydrate=rehydrate)
    with load_engine(compress=compress, kv_budget=plain.ledger.peak_kv_bytes // 2) as engine:
        found = solve("game24", "4 5 6 10", engine=engine, **search)
    assert found.ledger.compression.acted > 0
    assert all(node.exact for node in found.tree) == rehydrate
    assert (found.ledger.compression.rows == 0) == rehydrate
    if rehydrate:
        assert [(n.text, n.score) for n in found.tree] == [(n.text, n.score) for n in plain.tree]
    for node in found.tree:
        above = found.tree[node.parent] if node.parent is not None else node
        assert above.exact or not node.exact
