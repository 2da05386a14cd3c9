"""What a compression policy chooses is what stays of paths and thoughts, and a policy that chooses nonsense hurts nobody else."""

import asyncio
from typing import ClassVar

import numpy as np
import pytest

from rksc_tot import load_engine, solve
from rksc_tot.core.errors import CompressionError, ConfigError
from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account, GenerateRequest, LabelRequest, Sampling
from rksc_tot.engine.kv.path_compressor import shares
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.base import CompressionPolicy, PathPolicy, TreePolicy
from rksc_tot.policies.compression.random_attention import RandomAttention
from rksc_tot.policies.compression.snapkv import SnapKV
from rksc_tot.policies.compression.streaming_llm import Streaming
from rksc_tot.strategies import BFS
from tests.engine.conftest import byte_tokenizer, llama, mistral

HOT = Sampling(temperature=1.2)
LONG = "once upon a time, say yes"


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="module")
def make(tokenizer):
    model = llama(len(tokenizer))
    return lambda **options: TransformersEngine(model, tokenizer, name="tiny", pack=True, **options)


def ask(handle, name="s", k=3, max_tokens=40):
    return GenerateRequest(handle, stream_keys(range(k), name), HOT, max_tokens)


def texts(completions):
    return [(c.text, c.tokens, c.branches, c.finish, c.logprobs) for c in completions]


async def grow(engine, account, levels=3, k=3):
    """A tree of thoughts; all handles."""
    handles = [engine.open(LONG, account)]
    ends = handles[:]
    for level in range(levels):
        replies = await engine.generate([ask(end, level, k, 24) for end in ends[:3]], account)
        ends = [completion.handle for reply in replies for completion in reply]
        handles += ends
    return handles


def positions(segments):
    """Of what is kept of them."""
    return [position for segment in segments for position in segment.read(segment.start, segment.end)[1]]


class Watched:
    """Calls ``look`` with each path on which a generation stands, whenever paths have been brought down."""

    def __init__(self, engine, look):
        compress_over_budget = engine.scheduler.compressor.compress_over_budget

        def watched(jobs):
            compress_over_budget(jobs)
            self.looked = getattr(self, "looked", 0)
            for job in jobs:
                if hasattr(job, "groups") and job.running:
                    for tip in job.tips:
                        self.looked += 1
                        look(job, tip.lineage())

        engine.scheduler.compressor.compress_over_budget = watched


PATHS = {
    "random_attention": RandomAttention(budget=30, recent=4),
    "random_attention, unpinned": RandomAttention(budget=8, recent=4, pin_prompt=False),
    "random_attention, one set": RandomAttention(budget=30, recent=5, sets="one"),
    "streaming": Streaming(budget=28, recent=3),
    "streaming, unpinned": Streaming(budget=6, recent=3, sinks=2, pin_prompt=False),
    "snapkv": SnapKV(budget=30, recent=4),
    "snapkv, unpinned": SnapKV(budget=10, recent=6, pin_prompt=False),
}


@pytest.mark.parametrize(
    ("policy", "rows"), [*((name, 2048) for name in PATHS), ("random_attention", 5), ("snapkv", 5)]
)
async def test_a_path_holds_no_more_than_it_may_and_what_must_stay(make, policy, rows):
    policy = PATHS[policy]

    def look(job, lineage):
        ends = sum(s.handles > 0 or s.pins > sum(child.pins for child in s.children.values()) for s in lineage)
        held = positions(lineage)
        assert len(held) < policy.budget + 2 * policy.recent + ends
        if policy.pin_prompt:
            reached = max(
                (segment.start + segment.kv.computed for segment in lineage if segment.kv.computed), default=0
            )
            assert held[: job.prompt] == list(range(min(job.prompt, reached)))

    def compress(residency, tip, *rest):
        before = positions(tip.lineage())
        down(residency, tip, *rest)
        assert positions(tip.lineage())[-policy.recent :] == before[-policy.recent :]

    with make(compress=policy, max_batch_tokens=rows) as engine:
        watched, account = Watched(engine, look), Account()
        compressor = engine.scheduler.compressor
        down, compressor.compress = compressor.compress, compress
        handles = await grow(engine, account)
        assert watched.looked > 100
        assert account.ledger.compression.acted > 10
        engine.check_integrity()
        assert [s for s in engine.cache.segments() if s.pins] == []
        for handle in handles:
            engine.release(handle)
        engine.clear()
        assert engine.cache.residency.pool.used == 0


async def test_an_end_that_somebody_holds_stays(make):
    with make(compress=Streaming(budget=2, recent=2, sinks=1, pin_prompt=False)) as engine:
        handles = await grow(engine, Account(), levels=4, k=2)
        inner = [handle.segment for handle in handles if handle.segment.children]
        assert len(inner) > 5
        assert all(positions([segment])[-1:] == [segment.end - 1] for segment in inner)
        assert sum(len(segment.kv.slots) < len(segment.tokens) for segment in inner) > 3


@pytest.mark.parametrize("sets", ["one", "head"])
async def test_a_pinned_prompt_stays_however_many_ends_do(make, sets):
    with make(compress=RandomAttention(budget=25, recent=2, sets=sets)) as engine:
        account = Account()
        root = at = engine.open(LONG, account)
        for name in range(24):
            (found,) = await engine.generate([ask(at, name, k=1, max_tokens=3)], account)
            at = found[0].handle
        assert sum(segment.handles for segment in at.segment.lineage()) > 20
        assert root.segment.kv.present is None
        assert account.ledger.compression.tokens > 20


async def test_without_the_pin_the_prompt_goes(make):
    with make(compress=PATHS["random_attention, unpinned"]) as engine:
        account = Account()
        root = engine.open(LONG, account)
        await engine.generate([ask(root, k=1, max_tokens=120)], account)
        assert len(positions([root.segment])) < 5


async def test_each_head_keeps_what_its_own_attention_went_to(make):
    """Also where the path is many segments, each of which is brought down by itself."""
    views = []

    class Seen(SnapKV):
        def select(self, view, budget, rng):
            chosen = super().select(view, budget, rng)
            views.append((view, chosen))
            return chosen

    with make(compress=Seen(budget=12, recent=4, pin_prompt=False)) as engine:
        await grow(engine, Account())
    assert any(len(view) < 12 for view, _ in views)  # of a segment
    told = [view for view, _ in views if len(view) > 1]
    assert all((view.attention.sum(-1) > 0).any() for view in told)
    assert sum(len({tuple(head) for layer in chosen for head in layer}) > 1 for _, chosen in views) > 10


@pytest.mark.parametrize("policy", [RandomAttention(), SnapKV()])
def test_sets_of_the_heads_own_are_refused_where_a_window_is_one_for_all(tokenizer, policy):
    with pytest.raises(
        ConfigError, match=f"'{policy.name}' keeps other tokens in every head, and windowed has a window of 8"
    ):
        TransformersEngine(mistral(len(tokenizer)), tokenizer, name="windowed", compress=policy)


def test_the_mean_number_of_tokens_over_heads_is_what_a_segment_keeps():
    kept = np.array([[[0, 1, 2, 7], [0, 3, 6, 7]], [[1, 2, 3, 4], [0, 1, 2, 3]]])
    assert shares(kept, [4, 2, 2]) == [3, 0, 1]  # 11, 1 and 4 of 16
    assert shares(kept, [8]) == [4]
    assert shares(kept[..., :0], [4, 4]) == [0, 0]


# -- thoughts ------------------------------------------------------------------------------------------------------------


class Levelling(TreePolicy):
    """Everybody gives the same share; the first tokens stay."""

    name: ClassVar[str] = "levelling"

    def allot(self, blocks, budget):
        open_ = sum(block.tokens for block in blocks if not block.protected) or 1
        share = max(0, budget - sum(block.tokens for block in blocks if block.protected)) / open_
        return [block.tokens if block.protected else int(min(1, share) * block.tokens) for block in blocks]

    def select(self, view, budget, rng):
        return np.arange(min(budget, len(view)))


@pytest.mark.parametrize("policy", [ArborKV(tail=2), Levelling(), Levelling(rehydrate=False)])
async def test_thoughts_are_brought_down_before_any_of_them_is_evicted(make, policy):
    with make(compress=policy, kv_budget=300 * 576) as engine:
        account = Account()
        handles = await grow(engine, account)
        assert account.ledger.compression.acted > 5
        assert engine.cache.residency.pool.peak <= 300
        reduced = [h.segment for h in handles if h.segment.resident and h.segment.kv.present is not None]
        assert reduced
        assert engine.cache.residency.evicted_tokens < account.ledger.compression.tokens


async def test_what_work_stands_on_is_not_brought_down(make):
    seen = []

    class Spying(Levelling):
        def allot(self, blocks, budget):
            seen.append([block for block in blocks if block.protected])
            return super().allot(blocks, 0)  # as little as can be

    with make(compress=Spying(rehydrate=False), kv_budget=120 * 576) as engine:

        def look(job, lineage):
            assert all(segment.kv.present is None for segment in lineage)

        Watched(engine, look)
        account = Account()
        root = engine.open(LONG, account)
        for name in range(6):
            await engine.generate([ask(root, name, k=1, max_tokens=60)], account)
    assert any(seen)


# -- policies that are wrong ---------------------------------------------------------------------------------------------


def wrong(kind):
    """What a wrong policy returns instead of ``[n]`` ascending tokens."""
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
    """Books balance, nothing is pinned, and once these handles are given back nothing is left."""
    engine.check_integrity()
    assert [segment for segment in engine.cache.segments() if segment.pins] == []
    assert engine.usage.waiting == 0
    for handle in handles:
        engine.release(handle)
    engine.clear()
    assert list(engine.cache.segments()) == []
    assert engine.cache.residency.pool.used == 0


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_wrong_selection_ends_the_generation_it_was_for_and_no_other(make, fault):
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
    """One search holds what fills the cache; whoever needs room then is told why there is none, others go on."""
    mine, other = Account(), Account()
    root = engine.open(LONG, mine)
    (found,) = await engine.generate([ask(root, "a", k=3)], mine)
    with pytest.raises(CompressionError, match=f"^compression policy 'wrong':? {sentence}"):
        await engine.generate([ask(found[0].handle, "b", k=3)], mine)
    (few,) = await engine.generate([ask(root, "c", k=1, max_tokens=1)], other)
    assert len(few) == 1
    await settled(engine, root, *(completion.handle for completion in (*found, *few)))


@pytest.mark.parametrize("fault", ["unsorted", "foreign", "too many", "floats", "raises"])
async def test_a_wrong_selection_ends_what_needs_the_room_and_no_other(make, fault):
    with make(compress=WrongTree(fault=fault, rehydrate=False), kv_budget=180 * 576) as engine:
        await cramped(engine, FAULTS[fault])


@pytest.mark.parametrize("fault", ALLOTMENTS)
async def test_a_wrong_allotment_ends_what_needs_the_room_and_no_other(make, fault):
    with make(compress=WrongAllotment(fault=fault), kv_budget=180 * 576) as engine:
        await cramped(engine, ALLOTMENTS[fault][1])


class Neither(CompressionPolicy):
    name: ClassVar[str] = "neither"

    def select(self, view, budget, rng):
        raise NotImplementedError


class ByHead(Levelling):
    name: ClassVar[str] = "by_head"
    per_head: ClassVar[bool] = True


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (
            Neither(),
            "compression policy 'neither' is about neither a path nor a tree - derive it from PathPolicy or TreePolicy",
        ),
        (
            ByHead(),
            "compression policy 'by_head' keeps other tokens in every head, and thoughts .* keep one set of tokens",
        ),
    ],
)
def test_what_cannot_be_carried_out_is_refused_with_the_reason(make, policy, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make(compress=policy)


def test_a_prompt_that_leaves_no_room_is_refused_with_the_budget_it_needs(make):
    with make(compress=Streaming(budget=22)) as engine:
        with pytest.raises(ConfigError, match="has 22 - set budget to 23 at least"):
            engine.open(LONG, Account())
        assert list(engine.cache.segments()) == []


# -- searches ------------------------------------------------------------------------------------------------------------


def test_a_search_that_needs_four_times_the_room_finishes_in_it():
    search = {"strategy": BFS(b=4, k=10), "verifier": "lm_value"}
    with load_engine() as engine:
        plain = solve("game24", "4 5 6 10", engine=engine, **search)
    budget = plain.ledger.peak_kv_bytes // 4
    with load_engine(compress=ArborKV(tail=2, sinks=0), kv_budget=budget, eviction="none") as engine:
        found = solve("game24", "4 5 6 10", engine=engine, **search)
        engine.check_integrity()
        assert engine.cache.residency.pool.peak * engine.bytes_per_token <= budget
    assert [(n.text, n.score, n.pruned, n.exact) for n in found.tree] == [
        (n.text, n.score, n.pruned, True) for n in plain.tree
    ]
    assert found.ledger.compression.acted > 0
