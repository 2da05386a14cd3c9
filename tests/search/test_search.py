"""The invariants of a whole search."""

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.core.budget import Budget, BudgetReached
from rksc_tot.core.task import Reject, Thought
from tests.search.mock_search import Constant, fail, make_search, make_task, sorted_key


@given(
    letters=st.sampled_from(["a", "ab", "abcdef"]),
    k=st.integers(1, 6),
    depth=st.integers(1, 4),
    keyed=st.booleans(),
    nodes=st.none() | st.integers(1, 12),
    tokens=st.none() | st.integers(1, 60),
    b=st.integers(1, 3),
)
async def test_every_branch_is_a_node_merged_or_rejected_and_every_handle_is_released(
    letters, k, depth, keyed, nodes, tokens, b
):
    def parse(problem, path, text):
        return Thought(text) if text != "a" else fail(Reject("a"))

    options = {"state_key": sorted_key} if keyed else {}
    events = []
    search = make_search(
        writer=lambda text, rng: rng.choice(letters) * rng.randint(1, 3) + "\n",
        task=make_task(depth=depth, parse=parse, max_thought_tokens=3, **options),
        events=events,
        budget=Budget(nodes=nodes, tokens=tokens),
    )
    frontier = [search.root]
    try:
        while frontier:
            children = await search.expand(frontier, k)
            await search.score(children)
            frontier = search.keep(children, b)
    except BudgetReached:
        assert search.limits.stopped
    ledger, kinds = search.ledger, Counter(event.kind for event in events)
    added = len(search.tree) - 1
    assert added == ledger.nodes == kinds["added"] - 1
    assert ledger.merged == kinds["merged"] == sum(node.count - 1 for node in search.tree)
    assert ledger.rejected == kinds["rejected"]
    assert ledger.nodes <= (nodes or added)
    assert ledger.tokens_sampled <= (tokens or ledger.tokens_sampled)
    assert ledger.prefill_tokens == ledger.distinct_tokens
    assert search.engine.handles == sum(node.pruned is None for node in search.tree)
    search.close()
    search.close()
    assert search.engine.handles == 0


async def test_a_truncated_expansion_is_kept_and_the_next_call_stops():
    events = []
    search = make_search(budget=Budget(nodes=3, verifier_calls=2), verifier=Constant(), events=events)
    level = await search.expand([search.root], 5)
    assert len(level) == 3
    assert search.ledger.tokens_sampled == sum(len(node.tokens) for node in level)  # nor was a fourth drawn
    await search.score(level)
    assert [node.score for node in level] == [1.0, 1.0, None]
    with pytest.raises(BudgetReached, match="3 nodes"):
        await search.expand(level, 1)
    with pytest.raises(BudgetReached, match="2 verifier calls"):
        await search.score(level)
    assert [event.reason for event in events if event.kind == "budget"] == ["the budget of 3 nodes is used up"]


async def test_partly_scored_nodes_are_not_expanded():
    search = make_search(budget=Budget(verifier_calls=2), verifier=Constant())
    await search.score(await search.expand([search.root], 2))
    level = await search.expand([search.root], 3, round=1)  # all were scored until here
    with pytest.raises(BudgetReached, match="2 verifier calls"):
        await search.score(level)
    search = make_search(budget=Budget(verifier_calls=2), verifier=Constant())
    level = await search.expand([search.root], 3)
    await search.score(level)
    with pytest.raises(BudgetReached, match="2 verifier calls"):
        await search.expand(level, 1)


async def test_concurrent_calls_do_not_exceed_a_budget():
    search = make_search(budget=Budget(nodes=3, verifier_calls=2), verifier=Constant())
    levels = await asyncio.gather(search.expand([search.root], 2), search.expand([search.root], 2, round=1))
    assert [len(level) for level in levels] == [2, 1]
    await asyncio.gather(*(search.score(level) for level in levels), return_exceptions=True)
    assert [node.score for level in levels for node in level] == [1.0, 1.0, None]


async def test_the_last_tokens_are_used_and_an_unfinished_thought_is_rejected():
    search = make_search(writer=lambda text, rng: "abc\n", budget=Budget(tokens=6))
    [node] = await search.expand([search.root], 2)
    assert (node.count, search.ledger.tokens_sampled, search.ledger.rejected) == (1, 6, 1)
    with pytest.raises(BudgetReached, match="6 tokens"):
        await search.expand([node], 1)


async def test_nothing_starts_after_the_deadline():
    search = make_search(budget=Budget(seconds=1e-9))
    with pytest.raises(BudgetReached, match="seconds"):
        await search.expand([search.root], 1)
    with pytest.raises(BudgetReached, match="seconds"):
        await search.score([search.root])
    assert search.ledger.tokens_sampled == 0


def test_the_budget_reason_is_exact():
    search = make_search(budget=Budget(tokens=12345678, nodes=1, seconds=2.0))
    reasons = [search.limits.reason(limit) for limit in ("tokens", "nodes", "seconds")]
    assert [reason.removeprefix("the budget of ").removesuffix(" is used up") for reason in reasons] == [
        "12345678 tokens",
        "1 node",
        "2 seconds",
    ]


@pytest.mark.parametrize("mode", ["sample", "propose"])
async def test_no_more_thoughts_are_sampled_than_tokens_are_left(mode):
    events = []
    search = make_search(task=make_task(mode=mode), events=events, budget=Budget(tokens=100))
    await search.expand([search.root], 10**9)
    assert "tokens" in search.limits.stopped
    assert sum(event.kind == "rejected" for event in events) <= 100
    assert search.engine.handles == len(search.tree)


async def test_thoughts_prevented_by_the_deadline_are_not_rejections():
    def slow(text, rng):
        search.account.deadline = 0.0
        return "x\n"

    events = []
    search = make_search(writer=slow, events=events, budget=Budget(seconds=60))
    await search.expand([search.root], 10_000)
    assert search.ledger.rejected <= 1
    assert "seconds" in search.limits.stopped
    assert search.engine.handles == len(search.tree)


def test_random_streams_are_private():
    a, b = make_search(), make_search(seed=1)
    assert a.rng("x").random() == a.rng("x").random()
    assert len({s.rng(name).random() for s in (a, b) for name in "xy"}) == 4
    assert isinstance(a.rng(), random.Random)


async def test_nothing_happens_after_a_callback_stopped_the_search():
    events = []

    def stop(event):
        events.append(event)
        if len(events) == 3:
            raise BudgetReached("enough")

    search = make_search()
    search.listen(stop)
    with pytest.raises(BudgetReached):
        await search.expand([search.root], 5)
    for call in (search.expand([search.root], 1), search.score([search.tree[1]])):
        with pytest.raises(BudgetReached, match="enough"):
            await call
    assert (len(events), search.limits.stopped) == (3, "enough")
