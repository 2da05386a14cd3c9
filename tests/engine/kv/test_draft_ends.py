"""A verified draft ends whether or not another one may follow, so no generation waits for it."""

import asyncio

import pytest

from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine.base import Account, GenerateRequest, Sampling
from rksc_tot.engine.transformers_engine.engine import TransformersEngine
from rksc_tot.policies.compression.base import PathPolicy
from rksc_tot.policies.compression.lossless import Lossless
from rksc_tot.policies.compression.streaming_llm import Streaming
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import llama
from tests.patience import PATIENCE

PROMPTS = ("4 5 6 10\n", "1 2 3 4\n")


class Failing(PathPolicy):
    name = "failing"

    def select(self, view, budget, rng):
        raise ValueError("no")


def make(compress, **options):
    tokenizer = build_tokenizer()
    return TransformersEngine(
        llama(len(tokenizer)), tokenizer, compress=compress, lossless=Lossless(horizon=8), **options
    )


def request(handle, n, k=2):
    return GenerateRequest(handle, stream_keys(range(k), n), Sampling(temperature=1.2), 40)


@pytest.mark.parametrize("tokens", [85, 100, 120, 200])
async def test_a_token_budget_that_is_reached_during_drafts_ends_drafts_only(tokens):
    with make(Streaming(budget=8, recent=2)) as engine:
        account = Account(tokens_left=tokens)
        first, second = (engine.open(prompt, account) for prompt in PROMPTS)
        early = asyncio.ensure_future(engine.generate([request(first, 0)], account))
        while account.ledger.verified.rounds < 1:
            await asyncio.sleep(0)
        late = engine.generate([request(second, 1)], account)
        await asyncio.wait_for(asyncio.gather(early, late), PATIENCE)
        assert account.ledger.tokens_sampled <= tokens
        verified = account.ledger.verified
        assert verified.drafted == verified.accepted + verified.rejected
        engine.check_integrity()


async def test_a_policy_that_fails_ends_all_drafting_and_no_generation():
    with make(Failing(budget=10, recent=2)) as engine:
        accounts = [Account(), Account()]
        handles = [engine.open(prompt, account) for prompt, account in zip(PROMPTS, accounts, strict=True)]
        running = [
            engine.generate([request(h, n, 3)], a) for n, (h, a) in enumerate(zip(handles, accounts, strict=True))
        ]
        found = await asyncio.wait_for(asyncio.gather(*running), PATIENCE)
        assert all(len([b for c in completions for b in c.branches]) == 3 for [completions] in found)
        engine.check_integrity()
