"""The logger ``rksc_tot`` logs each pass and each eviction at DEBUG."""

import logging

from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account, GenerateRequest, Sampling
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import llama


async def test_each_pass_and_each_eviction_is_logged(caplog):
    tokenizer = build_tokenizer()
    model = llama(len(tokenizer))
    with TransformersEngine(model, tokenizer, name="tiny") as engine:
        size = engine.bytes_per_token
    with TransformersEngine(model, tokenizer, name="tiny", kv_budget=40 * size) as engine:
        account = Account()
        with caplog.at_level(logging.DEBUG, "rksc_tot"):
            for n in range(4):
                handle = engine.open("4 5 6 10\n", account)
                request = GenerateRequest(handle, stream_keys(range(2), n), Sampling(), 12)
                await engine.generate([request], account)
        told = [(record.msg.split()[0], record.args) for record in caplog.records]
        passes = [args for word, args in told if word == "pass"]
        evicted = [args for word, args in told if word == "evicted"]
        assert [n for n, *_ in passes] == list(range(1, engine.usage.passes + 1))
        assert sum(rows for _, rows, *_ in passes) == engine.usage.rows
        assert all(jobs == 1 and 0 < held <= 40 * size for *_, jobs, held in passes)
        assert sum(tokens for tokens, _ in evicted) == account.ledger.evicted_tokens > 0
        assert all(record.levelno == logging.DEBUG for record in caplog.records)
