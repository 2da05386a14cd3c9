"""A tree policy compresses only finished thoughts, not those of running or paused generations."""

import asyncio

from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine.base import Account, GenerateRequest, Sampling
from rksc_tot.engine.jobs.generation.generation import Generation
from rksc_tot.engine.kv.tree_compressor import TreeCompressor
from rksc_tot.engine.transformers_engine.engine import TransformersEngine
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import llama
from tests.patience import PATIENCE


async def test_unfinished_thoughts_are_never_compressed(monkeypatch):
    tokenizer = build_tokenizer()
    with TransformersEngine(llama(len(tokenizer)), tokenizer, name="tiny") as engine:
        per_token = engine.bytes_per_token
    seen = {"waiting": 0, "reduced": 0}
    plain = TreeCompressor._compress

    with TransformersEngine(
        llama(len(tokenizer)), tokenizer, compress=ArborKV(tail=1, sinks=0), kv_budget=90 * per_token
    ) as engine:

        def recorded(self, residency, segment, count):
            writing = [job for job in engine.scheduler.jobs if isinstance(job, Generation) and not job.ended]
            seen["waiting"] += any(not job.running for job in writing)
            seen["reduced"] += 1
            for job in writing:
                for tip in job.tips:
                    assert segment not in [s for s in tip.lineage() if s.start >= job.base.end]
            plain(self, residency, segment, count)

        monkeypatch.setattr(TreeCompressor, "_compress", recorded)
        account = Account()
        prompt = engine.open("4 5 6 10\n", account)

        def more(handles, turn):
            requests = [
                GenerateRequest(h, stream_keys(range(2), turn, n), Sampling(), 16) for n, h in enumerate(handles)
            ]
            return engine.generate(requests, account)

        [first] = await more([prompt], 0)
        second = await more([c.handle for c in first], 1)
        await asyncio.wait_for(more([c.handle for found in second for c in found], 2), PATIENCE)
        engine.check_integrity()
    assert seen["waiting"] > 0
    assert seen["reduced"] > 0
