"""``Search.write``: replies that a verifier reads, on scratch after a node."""

import pytest

from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError, ContextOverflow
from rksc_tot.core.task import function_task
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.search import Search
from rksc_tot.verifiers import Verifier
from tests.engine.conftest import byte_tokenizer, llama
from tests.search.mock_search import make_search


def writer(text, rng):
    return f"{len(text)}." if text.endswith("?") else f"{rng.getrandbits(40)}\n"


async def test_a_reply_follows_the_text_after_its_node():
    search = make_search(writer)
    level = await search.expand([search.root], 2)
    replies = await search.write(level, ["one?", "another?"], max_tokens=20)
    paths = [f"p:\n{node.text}\n" for node in level]
    assert [reply.text for reply in replies] == [f"{len(paths[0]) + 4}.", f"{len(paths[1]) + 8}."]
    assert {reply.finish for reply in replies} == {"eos"}


async def test_a_reply_ends_at_its_stop_and_at_its_token_limit():
    search = make_search(writer)
    level = await search.expand([search.root], 1)
    [stopped] = await search.write(level, ["what?"], max_tokens=20, stop=["."])
    [cut] = await search.write(level, ["what?"], max_tokens=1)
    assert (stopped.finish, cut.finish, len(cut.tokens)) == ("stop", "length", 1)


@pytest.mark.parametrize("real", [False, True])
async def test_a_reply_leaves_no_trace_and_counts_as_verifier_tokens(real):
    tokenizer = byte_tokenizer()
    engine = TransformersEngine(llama(len(tokenizer)), tokenizer) if real else MockEngine(writer)
    task = function_task(
        prompt=lambda problem: "say yes\n",
        is_solution=lambda problem, path: False,
        accept_truncated=True,
        max_thought_tokens=4,
    )
    search = Search(task, "p", engine, Verifier())
    level = await search.expand([search.root], 2)
    before = search.ledger.model_copy()
    lengths = [node._handle.length for node in level]
    replies = await search.write(level, ["so?", "so?"], max_tokens=5)
    after = search.ledger
    sampled = after.tokens_sampled - before.tokens_sampled
    assert all(reply.handle is None for reply in replies)
    assert 0 < sampled <= 10
    assert after.verifier_tokens > before.verifier_tokens == 0
    assert after.proposal_tokens == 0
    assert after.prefill_tokens == after.distinct_tokens
    assert [node._handle.length for node in level] == lengths
    await search.expand(level, 1)
    assert after.prefill_tokens == after.distinct_tokens
    assert [reply.text for reply in await search.write(level, ["so?", "so?"], max_tokens=5)] == [
        r.text for r in replies
    ]
    if real:
        engine.check_integrity()
    search.close()
    engine.close()


async def test_replies_never_exceed_the_token_budget_and_a_reply_that_was_cut_off_is_none():
    search = make_search(writer)
    thought = len((await search.expand([search.root], 1))[0].text) + 1
    search = make_search(writer, budget=Budget(tokens=thought + 5))
    level = await search.expand([search.root], 1)
    replies = await search.write([*level, *level], ["what?", "what?"], max_tokens=20)
    assert [reply is None for reply in replies] == [False, True]
    assert search.ledger.tokens_sampled == thought + 5
    assert search.limits.out_of_tokens


class Writes(Verifier):
    async def score(self, search, nodes):
        replies = await search.write(nodes, ["what?"] * len(nodes), max_tokens=20)
        return [None if reply is None else 1.0 for reply in replies]


async def test_a_node_without_a_reply_stays_unscored_and_the_budget_is_named():
    search = make_search(writer)
    await search.expand([search.root], 2)
    most = search.ledger.tokens_sampled + 5
    search = make_search(writer, verifier=Writes(), budget=Budget(tokens=most))
    level = await search.expand([search.root], 2)
    await search.score(level)
    assert None in [node.score for node in level]
    assert [node.pruned for node in level] == [None, None]
    assert search.limits.stopped == f"the budget of {most} tokens is used up"


async def test_a_text_too_long_for_the_context_is_an_error_and_an_empty_one_too():
    search = make_search(writer, context=60)
    level = await search.expand([search.root], 1)
    with pytest.raises(ContextOverflow):
        await search.write(level, ["?" * 60], max_tokens=5)
    with pytest.raises(ConfigError, match="the text of a verifier is empty"):
        await search.write(level, [""], max_tokens=5)
