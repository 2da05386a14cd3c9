"""If a stop string cuts inside a token, log-probabilities belong to the kept tokens."""

import pytest
import torch
from torch import nn

from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account, GenerateRequest, Sampling
from tests.engine.conftest import byte_tokenizer, llama

BRANCHES = 24
TOKENS = ["yes", " yes", "s", "a", "\n\n", ".\n\n"]  # a model that writes these only


def make(**settings):
    tokenizer = byte_tokenizer()
    model = llama(len(tokenizer))
    head = nn.Linear(model.config.hidden_size, len(tokenizer), bias=True)
    nn.init.constant_(head.bias, -12.0)
    ids = [tokenizer.encode(token, add_special_tokens=False) for token in TOKENS]
    assert all(len(each) == 1 for each in ids)
    with torch.no_grad():
        head.weight.copy_(model.lm_head.weight)
        head.bias[[id for (id,) in ids]] = 0.0
    model.lm_head = head
    return TransformersEngine(model, tokenizer, name="bytes", **settings)


def request(handle, stop, keep_stop, **more):
    streams = stream_keys(range(BRANCHES), "tail")
    return GenerateRequest(handle, streams, Sampling(), 12, stop=stop, keep_stop=keep_stop, **more)


def plain(engine, prompt, tokens):
    """Log-probability of each token by one pass over the whole path."""
    before = engine.tokenizer.encode(prompt)
    logits = engine.forward.plain([*before, *tokens])[len(before) - 1 : -1].double()
    return logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("keep_stop", [True, False])
@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(("\n",), id="one token is kept of the last"),
        pytest.param(("es",), id="two tokens are kept of the last"),
        pytest.param(("ss", "\na"), id="the token before the last is cut"),
    ],
)
async def test_logprobs_belong_to_the_kept_tokens(stop, keep_stop):
    with make() as engine:
        account = Account()
        [completions] = await engine.generate([request(engine.open("say", account), stop, keep_stop)], account)
        ended = [c for c in completions if c.finish == "stop" and c.tokens]
        assert sum(len(c.branches) for c in completions) == BRANCHES
        assert len(ended) > 1
        for c in ended:
            decoded = engine.tokenizer.decode(c.tokens)
            assert c.text == decoded if not keep_stop else decoded.removeprefix(c.text) in stop
            assert c.handle.tokens[-len(c.tokens) :] == list(c.tokens)
            assert c.logprobs == pytest.approx(plain(engine, "say", list(c.tokens)), abs=1e-4)
        engine.check_integrity()


async def test_a_tail_of_one_token_costs_no_pass():
    with make() as engine:
        account = Account()
        handle = engine.open("say", account)
        await engine.generate([request(handle, ("\n",), True)], account)
        assert account.ledger.forward_passes <= 12
        assert account.ledger.recomputed_tokens == 0


@pytest.mark.parametrize("tokens_left", range(20, 80, 12))
async def test_every_text_has_its_logprobs_when_a_budget_ends(tokens_left):
    with make() as engine:
        account = Account(tokens_left=tokens_left)
        [completions] = await engine.generate([request(engine.open("say", account), ("ss",), False)], account)
        for c in completions:
            assert len(c.tokens) == len(c.logprobs)
            assert engine.tokenizer.decode(c.tokens) == c.text
            assert c.logprobs == pytest.approx(plain(engine, "say", list(c.tokens)), abs=1e-4)
        assert account.ledger.tokens_sampled <= tokens_left
        engine.check_integrity()


async def test_a_generation_with_tails_that_waits_for_room_gives_the_same_text():
    with make() as free, make(kv_budget=200 * free.bytes_per_token) as engine:
        found = []
        for each in (free, engine):
            account = Account()
            handles = [each.open(text, account) for text in ("say", "no")]
            replies = await each.generate([request(h, ("ss",), False) for h in handles], account)
            found.append([[(c.text, c.tokens, c.logprobs, c.finish, c.branches) for c in r] for r in replies])
            each.check_integrity()
        assert account.ledger.evicted_tokens > 0
        assert found[0] == found[1]
