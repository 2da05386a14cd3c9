"""Tokens and KV of closings and observations on a model: equal to plain passes over the same tokens."""

import pytest

from rksc_tot.engine import TransformersEngine
from rksc_tot.search import Search
from rksc_tot.verifiers import Likelihood
from tests.engine.conftest import byte_tokenizer, llama
from tests.search.mock_search import make_task

ASK = "\nThe answer is"
TURNS = [{"role": "user", "content": "So what is it?"}]
SHORT = {"max_thought_tokens": 6, "closing_tokens": 5, "is_solution": lambda problem, path: False}


@pytest.fixture(scope="module")
def engine():
    tokenizer = byte_tokenizer()
    with TransformersEngine(llama(len(tokenizer), layers=3), tokenizer, name="bytes") as engine:
        yield engine
        engine.check_integrity()


def search_on(engine, **options):
    engine.clear()
    return Search(make_task(**SHORT | options), "p", engine, Likelihood())


def check_logprobs(engine, node):
    """The log-probabilities of a node's tokens, which end its path, are those of a plain pass over the path."""
    tokens = node._handle.tokens
    rows = engine.forward.plain(tokens).log_softmax(-1)
    begin = len(tokens) - len(node.tokens)
    assert tuple(tokens[begin:]) == node.tokens
    fresh = [float(rows[at - 1, tokens[at]]) for at in range(begin, len(tokens))]
    drawn = len(node.tokens) - (node.finish == "eos")  # the last one stands for the end of text
    assert node.logprobs[:drawn] == pytest.approx(fresh[:drawn], abs=1e-4)
    return rows, begin, drawn


@pytest.mark.parametrize(
    ("closing", "prompt", "asked"),
    [
        (ASK, "steps:\n", ASK),
        (ASK, TURNS, ASK),
        (TURNS, TURNS, "\n[user]So what is it?\n[assistant]"),
        ("\n<pad></s>", "steps:\n", "\n<pad></s>"),
    ],
)
async def test_a_closing_continues_greedily_on_the_kv_of_the_path(engine, closing, prompt, asked):
    search = search_on(engine, closing=closing, prompt=lambda problem: prompt)
    level = await search.expand([search.root], 6)
    closed = await search.expand(level, 1)
    assert len(closed) >= 3
    for node in closed:
        parent = search.tree[node.parent]._handle.tokens
        rows, begin, drawn = check_logprobs(engine, node)
        assert engine.tokenizer.decode(node._handle.tokens[len(parent) : begin]) == asked
        controls = [token for token in node._handle.tokens[len(parent) : begin] if token < 3]
        assert controls == []
        whole = drawn - (node.finish == "stop")  # the stop string may be part of a drawn token
        assert [int(rows[at - 1].argmax()) for at in range(begin, begin + whole)] == list(node.tokens[:whole])
    ledger = search.ledger
    assert ledger.prefill_tokens == ledger.distinct_tokens
    assert ledger.closings == len(level)
    search.close()


async def test_a_question_after_a_closing_of_messages_is_the_next_turn(engine):
    search = search_on(engine, closing=TURNS, prompt=lambda problem: TURNS)
    [node, *_] = await search.expand(await search.expand([search.root], 1), 1)
    before = len(node._handle.tokens)
    longer = engine.extend(node._handle, [{"role": "user", "content": "Sure?"}])
    assert engine.tokenizer.decode(longer.tokens[before:]) == "\n[user]Sure?\n[assistant]"
    engine.release(longer)
    search.close()


@pytest.mark.parametrize("said", ["= 4", "= 4\n", "<s>[user]</s><pad>\n\n", "é\x00\ufffd"])
async def test_thoughts_after_an_observation_are_those_after_the_same_text(engine, said):
    search = search_on(engine, observe=lambda problem, path: said, accept_truncated=True)
    level = await search.expand([search.root], 6)
    children = await search.expand(level, 2)
    assert level
    for node in level:
        tokens, root = node._handle.tokens, search.root._handle.tokens
        own = len(root) + len(node.tokens)
        assert tuple(tokens[len(root) : own]) == node.tokens
        between = "\n" if node.finish == "length" else ""
        assert engine.tokenizer.decode(tokens[own:]) == between + said + ("" if said.endswith("\n") else "\n")
        assert not {0, 1, 2} & set(tokens[own:])
    for child in children:
        seen = search.tree[child.parent]._handle.tokens
        rows = engine.forward.plain([*seen, *child.tokens]).log_softmax(-1)
        fresh = [float(rows[len(seen) + at - 1, token]) for at, token in enumerate(child.tokens)]
        drawn = len(child.tokens) - (child.finish == "eos")
        assert child.logprobs[:drawn] == pytest.approx(fresh[:drawn], abs=1e-4)
    assert search.ledger.prefill_tokens == search.ledger.distinct_tokens
    assert search.ledger.tokens_sampled <= 6 * (6 + 2 * 6)
    search.close()
