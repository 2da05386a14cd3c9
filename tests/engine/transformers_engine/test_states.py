"""Stops by rivals, and hidden states for the comparison of thoughts."""

import pytest
import torch

from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account
from rksc_tot.policies.early_exit.cgee import RivalStop
from tests.engine.conftest import byte_tokenizer, llama
from tests.engine.requests import PROMPT, ask, grow, texts

STOPS = tuple("57")


class FirstToEnd(RivalStop):
    def decisive(self, ended, running):
        return bool(ended and running)


async def test_branches_stop_only_when_an_ended_branch_is_decisive(engine):
    account = Account()
    root = engine.open(PROMPT, account)
    (full,) = await engine.generate([ask(root, "r", k=12, max_tokens=40, stop=STOPS)], account)
    ended = min(len(c.tokens) for c in full if c.finish == "stop")
    (cut,) = await engine.generate(
        [ask(root, "r", k=12, max_tokens=40, stop=STOPS, rivals=FirstToEnd(confidence=0, margin=0))], account
    )
    kept = {c.tokens for c in cut if c.finish != "rival"}
    assert kept <= {c.tokens for c in full}
    assert all(len(c.tokens) >= ended for c in cut)
    assert sorted(b for c in cut for b in c.branches) == list(range(12))
    assert any(c.finish == "rival" for c in cut)
    (never,) = await engine.generate(
        [ask(root, "r", k=12, max_tokens=40, stop=STOPS, rivals=RivalStop(confidence=1, margin=1))], account
    )
    assert texts(never) == texts(full)


async def test_states_belong_to_the_row_that_predicts_the_end(engine):
    account = Account()
    root = engine.open(PROMPT, account)
    (alone,) = await engine.generate([ask(root, "s", k=4, states=True)], account)
    engine.clear()
    (crowd, _) = await engine.generate([ask(root, "s", k=4, states=True), ask(root, "s", k=9)], account)
    engine.forward.take("mask")
    for a, b in zip(alone, crowd, strict=True):
        before_the_end = torch.tensor([b.handle.tokens[:-1]])
        states = engine.model(input_ids=before_the_end, output_hidden_states=True, use_cache=False).hidden_states
        for layer in range(1, engine.layers):
            expected = states[layer][0, -1]
            torch.testing.assert_close(b.handle.states[layer - 1], expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(a.handle.states, b.handle.states, atol=1e-4, rtol=0)


async def test_a_path_does_not_diverge_from_itself(engine):
    account = Account()
    _, first, _ = await grow(engine, account, k=4)
    a, b = first[0].handle, first[1].handle
    same, other = await engine.divergence([(a, a), (a, b)], account)
    assert same == (0.0, True)
    logs = [engine.forward.plain(h.tokens)[-1].double().log_softmax(-1) for h in (a, b)]
    assert other[0] == pytest.approx(float((logs[0].exp() * (logs[0] - logs[1])).sum()), abs=1e-4)
    assert account.ledger.prefill_tokens == account.ledger.distinct_tokens + account.ledger.recomputed_tokens


async def test_later_work_does_not_change_states(engine):
    account = Account()
    root = engine.open(PROMPT, account)
    (found,) = await engine.generate([ask(root, "s", k=5, states=True)], account)
    handles = [completion.handle for completion in found]
    before = engine.similarity(handles[0], handles, 1.5)
    await engine.generate([ask(handle, n, k=2, states=True) for n, handle in enumerate(handles)], account)
    await engine.generate([ask(root, "s", k=5)], account)
    engine.clear()
    assert engine.similarity(handles[0], handles, 1.5) == before
    assert None not in before


async def test_states_are_kept_when_a_prompt_is_prefilled_in_chunks():
    tokenizer = byte_tokenizer()
    with TransformersEngine(llama(len(tokenizer)), tokenizer, max_batch_tokens=4) as engine:
        account = Account()
        root = engine.open("a prompt that is longer than one pass", account)
        (found,) = await engine.generate([ask(root, k=3, max_tokens=3, states=True)], account)
        assert all(completion.handle.states is not None for completion in found)
