"""Engines that compress KV, and trees of thoughts on them."""

from typing import ClassVar

import numpy as np

from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine.base import GenerateRequest, Sampling
from rksc_tot.policies.compression.base import TreePolicy

HOT = Sampling(temperature=1.2)
LONG = "once upon a time, say yes"


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


class PathRecorder:
    """Calls ``look`` with each path of a generation after every compression of paths."""

    def __init__(self, engine, look):
        compress_over_budget = engine.scheduler.compressor.compress_over_budget

        def recorded(jobs):
            compress_over_budget(jobs)
            self.looked = getattr(self, "looked", 0)
            for job in jobs:
                if hasattr(job, "groups") and job.running:
                    for tip in job.tips:
                        self.looked += 1
                        look(job, tip.lineage())

        engine.scheduler.compressor.compress_over_budget = recorded


class Levelling(TreePolicy):
    """A policy that takes the same share of every thought, and keeps the first tokens."""

    name: ClassVar[str] = "levelling"

    def allot(self, blocks, budget):
        open_ = sum(block.tokens for block in blocks if not block.protected) or 1
        share = max(0, budget - sum(block.tokens for block in blocks if block.protected)) / open_
        return [block.tokens if block.protected else int(min(1, share) * block.tokens) for block in blocks]

    def select(self, view, budget, rng):
        return np.arange(min(budget, len(view)))
