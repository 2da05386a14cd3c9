"""Expansion: which thoughts are generated after which nodes, and their names."""

from collections import Counter

import pytest

from rksc_tot.core.errors import ConfigError
from rksc_tot.engine.mock.engine import MockEngine
from tests.search.mock_search import fail, make_search, make_task, texts, wide


async def test_all_nodes_are_expanded_in_one_engine_call():
    class Counting(MockEngine):
        calls = 0

        async def generate(self, requests, account):
            self.calls += 1
            return await super().generate(requests, account)

    engine = Counting(wide)
    search = make_search(engine=engine)
    level = await search.expand([search.root], 4)
    await search.expand(level, 3)
    assert engine.calls == 2


async def test_children_are_ordered_by_parent_then_by_branch():
    search = make_search()
    level = await search.expand([search.root], 3)
    assert [node.branch for node in level] == ["0", "1", "2"]
    children = await search.expand(level[::-1], 2)
    assert [node.branch for node in children] == ["2.0", "2.1", "1.0", "1.1", "0.0", "0.1"]


async def test_text_depends_on_seed_problem_and_branch_only():
    alone, crowd, other = make_search(), make_search(), make_search(seed=1)
    a = await alone.expand([alone.root], 2)
    b = await crowd.expand([crowd.root], 5)
    c = await other.expand([other.root], 2)
    assert texts(a) == texts(b)[:2]
    assert texts(a) != texts(c)
    assert len({node.text for node in await other.expand(c, 2)}) == 4
    assert texts(await alone.expand([a[1]], 2)) == texts(await crowd.expand(b[::-1], 3))[9:11]


async def test_expanding_again_repeats_the_texts_and_another_round_does_not():
    search = make_search()
    first = await search.expand([search.root], 3)
    assert await search.expand([search.root], 3) == []
    assert [node.count for node in first] == [2, 2, 2]
    fresh = await search.expand([search.root], 3, round=1)
    assert len(fresh) == 3
    assert len({node.branch for node in [*first, *fresh]}) == 6


async def test_greedy_branches_are_one_node_with_their_count():
    search = make_search()
    [node] = await search.expand([search.root], 4, temperature=0)
    assert node.count == 4
    assert search.ledger.merged == 3


async def test_each_node_may_have_its_own_k():
    search = make_search()
    level = await search.expand([search.root], 2)
    children = await search.expand(level, [1, 3])
    assert Counter(node.parent for node in children) == {level[0].id: 1, level[1].id: 3}


@pytest.mark.parametrize("k", [0, [1], [1, 0], "2"])
async def test_an_invalid_k_is_refused(k):
    search = make_search()
    level = await search.expand([search.root], 2)
    with pytest.raises(ConfigError, match="k of at least 1"):
        await search.expand(level, k)


async def test_finished_and_deepest_nodes_get_no_children_and_pruned_ones_are_refused():
    task = make_task(depth=1, max_thoughts=2)
    search = make_search(task=task)
    [node] = await search.expand([search.root], 1)
    assert node.finished
    assert await search.expand([node], 2) == []
    deep = make_search(task=make_task(is_solution=lambda problem, path: False, max_thoughts=1))
    [node] = await deep.expand([deep.root], 1)
    assert await deep.expand([node], 2) == []
    deep.prune(node, "no good")
    with pytest.raises(ConfigError, match=r"node 1 .*no good"):
        await deep.expand([node], 2)


def proposing(**options):
    return make_task(mode="propose", **options)


@pytest.mark.parametrize(("keep_stop", "context"), [(True, "p:\none\n"), (False, "p:\none")])
async def test_proposed_thoughts_extend_their_parent(keep_stop, context):
    search = make_search(writer=lambda text, rng: "one\ntwo\nthree\nfour\n\nrest", task=proposing(keep_stop=keep_stop))
    children = await search.expand([search.root], 3)
    assert texts(children) == ["one", "two", "three"]
    assert children[0]._handle.text == context
    assert [node.branch for node in children] == ["0", "1", "2"]
    assert search.ledger.proposal_tokens > 0
    assert search.engine.handles == 4


async def test_the_last_piece_of_a_reply_that_was_cut_off_is_rejected():
    search = make_search(writer=lambda text, rng: "one\ntwo\nthree\n", task=proposing(max_thought_tokens=3))
    assert texts(await search.expand([search.root], 3)) == ["one", "two"]  # 9 of 14 tokens: the third is cut off
    assert search.ledger.rejected == 1


@pytest.mark.parametrize(
    ("writer", "options"),
    [
        (lambda text, rng: "", {}),
        (lambda text, rng: "a\nb\n\n", {"split": lambda problem, path, reply: fail(IndexError("none"))}),
        (lambda text, rng: "a\nb\n\n", {"split": lambda problem, path, reply: reply}),
        (lambda text, rng: "a\nb\n\n", {"propose_prompt": lambda problem, path: fail(IndexError("none"))}),
        (lambda text, rng: "a\nb\n\n", {"propose_prompt": lambda problem, path: None}),
    ],
)
async def test_a_reply_without_thoughts_is_rejected(writer, options):
    search = make_search(writer=writer, task=proposing(**options))
    assert await search.expand([search.root], 3) == []
    assert search.ledger.rejected == 1


async def test_proposals_too_long_for_the_context_are_rejected_alone():
    search = make_search(
        writer=lambda text, rng: "a\nb\n\n",
        task=proposing(propose_prompt=lambda problem, path: "?", split=lambda problem, path, reply: ["a", "b" * 99]),
        context=70,
    )
    [node] = await search.expand([search.root], 4)
    assert node.text == "a"
    assert search.ledger.rejected == 1


async def test_an_invalid_temperature_is_refused_in_one_line():
    search = make_search()
    with pytest.raises(ConfigError, match=r"temperature: [^\n]*, not -1 - "):
        await search.expand([search.root], 1, temperature=-1)
