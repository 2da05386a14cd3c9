"""A path keeps the tokens that its policy selects, and required tokens: recent tokens, ends of handles, the prompt."""

import numpy as np
import pytest

from rksc_tot.engine.base import Account
from rksc_tot.engine.kv.path_compressor import shares
from rksc_tot.policies.compression.random_attention import RandomAttention
from rksc_tot.policies.compression.snapkv import SnapKV
from rksc_tot.policies.compression.streaming_llm import Streaming
from tests.engine.kv.compressed import LONG, PathRecorder, ask, grow, positions

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
async def test_a_path_stays_within_its_budget_and_keeps_required_tokens(make, policy, rows):
    policy = PATHS[policy]

    def look(job, lineage):
        ends = sum(s.handles > 0 or s.pins > sum(child.pins for child in s.children.values()) for s in lineage)
        held = positions(lineage)
        assert len(held) < policy.budget + 2 * policy.recent + ends
        if policy.pin_prompt:
            reached = max(
                (segment.start + segment.kv.computed for segment in lineage if segment.kv.computed), default=0
            )
            assert held[: job.prompt_end] == list(range(min(job.prompt_end, reached)))

    def compress(residency, tip, *rest):
        before = positions(tip.lineage())
        down(residency, tip, *rest)
        assert positions(tip.lineage())[-policy.recent :] == before[-policy.recent :]

    with make(compress=policy, max_batch_tokens=rows) as engine:
        recorder, account = PathRecorder(engine, look), Account()
        compressor = engine.scheduler.compressor
        down, compressor.compress = compressor.compress, compress
        handles = await grow(engine, account)
        assert recorder.looked > 100
        assert account.ledger.compression.acted > 10
        engine.check_integrity()
        assert [s for s in engine.cache.segments() if s.pins] == []
        for handle in handles:
            engine.release(handle)
        engine.clear()
        assert engine.cache.residency.pool.used == 0


async def test_the_last_token_of_a_held_path_stays(make):
    with make(compress=Streaming(budget=2, recent=2, sinks=1, pin_prompt=False)) as engine:
        handles = [engine.open(LONG, Account())]
        for name in range(8):
            await engine.generate([ask(handles[-1], name, k=1, max_tokens=6)], Account())
            handles.append(engine.extend(handles[-1], " say yes, no"))
        inner = [handle.segment for handle in handles if handle.segment.children]
        assert len(inner) > 5
        assert all(positions([segment])[-1:] == [segment.end - 1] for segment in inner)
        assert sum(len(segment.kv.slots) < len(segment.tokens) for segment in inner) > 1


@pytest.mark.parametrize("sets", ["one", "head"])
async def test_a_pinned_prompt_stays_beside_any_number_of_ends(make, sets):
    with make(compress=RandomAttention(budget=25, recent=2, sets=sets)) as engine:
        account = Account()
        root = at = engine.open(LONG, account)
        for name in range(24):
            (found,) = await engine.generate([ask(at, name, k=1, max_tokens=3)], account)
            at = found[0].handle
        assert sum(segment.handles for segment in at.segment.lineage()) > 20
        assert root.segment.kv.present is None
        assert account.ledger.compression.tokens > 20


async def test_an_unpinned_prompt_is_compressed(make):
    with make(compress=PATHS["random_attention, unpinned"]) as engine:
        account = Account()
        root = engine.open(LONG, account)
        await engine.generate([ask(root, k=1, max_tokens=120)], account)
        assert len(positions([root.segment])) < 5


async def test_each_head_keeps_the_tokens_it_attended_to(make):
    """The path also has many segments, each of which is compressed separately."""
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


def test_a_segment_keeps_the_mean_number_of_tokens_over_heads():
    kept = np.array([[[0, 1, 2, 7], [0, 3, 6, 7]], [[1, 2, 3, 4], [0, 1, 2, 3]]])
    assert shares(kept, [4, 2, 2]) == [3, 0, 1]  # 11, 1 and 4 of 16
    assert shares(kept, [8]) == [4]
    assert shares(kept[..., :0], [4, 4]) == [0, 0]
