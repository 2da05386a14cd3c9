"""Thinking blocks of thoughts, on an engine whose every word is known."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError, ContextOverflow, TaskError
from rksc_tot.core.task import Reject, Thinking, Thought
from rksc_tot.engine.mock.engine import MockEngine
from tests.search.mock_search import make_search, make_task
from tests.search.thoughts.scripted import OPEN, scripted

ROOT = "p:\n"


async def one(reply, k=1, budget=100, tokens=60, after=ROOT, **options):
    """The node of a reply, and its search. The reply begins inside the block, which the search opens."""
    names = ("keep", "thought", "markers")
    setting = Thinking(budget=budget, **{name: options.pop(name) for name in names if name in options})
    task = make_task(thinking=setting, max_thought_tokens=tokens, **options)
    search = make_search(task=task, engine=MockEngine(scripted(reply, after + OPEN)))
    nodes = await search.expand([search.root], k)
    return nodes[0] if nodes else None, search


@pytest.mark.parametrize("keep", [False, True])
async def test_a_thought_is_the_text_after_its_block(keep):
    node, search = await one("so 6*7</think>42\n", keep=keep)
    assert (node.text, node.thinking, node.forced_close) == ("42", "so 6*7", False)
    assert node.tokens == tuple(map(ord, "42\n"))
    assert node._handle.text == ROOT + ("<think>so 6*7</think>42\n" if keep else "42\n")
    assert search.ledger.forced_closes == 0
    assert search.ledger.thinking_tokens == node.thinking_tokens == len("so 6*7</think>")


async def test_a_thought_may_be_the_whole_reply():
    node, _ = await one("so</think>42\n", thought="whole", keep=True)
    assert (node.text, node.thinking) == ("<think>so</think>42", "so")
    assert node.tokens == tuple(map(ord, "so</think>42\n"))
    assert node._handle.text == ROOT + "<think>so</think>42\n"


@pytest.mark.parametrize("keep", [False, True])
async def test_thoughts_may_be_steps_inside_one_block(keep):
    first, search = await one("one\ntwo</think>42\nx\n", thought="inside", keep=keep)
    assert (first.text, first.thinking, first._handle.text) == ("one", "one", f"{ROOT}<think>one\n")
    (second,) = await search.expand([first], 1)
    assert (second.text, second.thinking) == ("42", "two")
    assert second._handle.text == ROOT + ("<think>one\ntwo</think>42\n" if keep else "42\n")
    (third,) = await search.expand([second], 1)
    assert (third.thinking, third.thinking_tokens) == ("", 0)


async def test_the_budget_of_steps_inside_a_block_is_one_for_the_whole_block():
    first, search = await one("one\ntwo and more", thought="inside", budget=6)
    assert first.thinking_tokens == 4
    (second,) = await search.expand([first], 1)
    assert (second.text, second.thinking, second.thinking_tokens) == ("o and more", "tw", 2)
    assert (search.ledger.thinking_tokens, search.ledger.forced_closes) == (6, 1)


async def test_the_last_thought_of_a_path_closes_the_block():
    node, _ = await one("one\ntwo</think>42\n", thought="inside", max_thoughts=1)
    assert (node.text, node.thinking) == ("42", "one\ntwo")


@pytest.mark.parametrize("over", [0, 1, 5])
async def test_a_block_is_closed_by_force_at_its_budget(over):
    node, search = await one("x" * (10 + over) + "\n42\n", budget=10, keep=True)
    assert node.thinking == "x" * 10
    assert node.forced_close
    assert node._handle.text.startswith(f"{ROOT}<think>{'x' * 10}</think>")
    assert (search.ledger.forced_closes, node.thinking_tokens) == (1, 10)


async def test_text_that_ends_inside_the_block_is_followed_by_a_reply():
    writers = {f"{ROOT}<think>": "hm", f"{ROOT}<think>hm</think>": "42\n"}
    task = make_task(thinking=Thinking(keep=True))
    search = make_search(writer=lambda text, rng: writers[text], task=task)
    (node,) = await search.expand([search.root], 1)
    assert (node.text, node.thinking, node.forced_close) == ("42", "hm", True)


@pytest.mark.parametrize(
    ("reply", "text", "thinking"),
    [
        ("a</think></think>42\n", "42", "a"),
        ("a</think>\n</think>\n42\n", "42", "a"),
        ("a</think>not yet</think>42\n", "42", "anot yet"),
        ("a</think><think>b</think>42\n", "42", "a<think>b"),
        ("a</think>\n<think>\nb</think>42\n", "42", "ab"),
        ("a<think>b</think>42\n", "42", "a<think>b"),
        ("a</think>42 <think>b\n", "42 ", "ab"),
        ("a</think>42</think>\n43\n", "43", "a42"),
        ("</think>42\n", "42", ""),
        ("a</thi nk></ think>b</think>42\n", "42", "a</thi nk></ think>b"),
        ("a< /think>" + "x" * 90 + "\n42\n", "42", "a< /think>" + "x" * 90),
    ],
)
async def test_odd_markers_never_get_into_the_text(reply, text, thinking):
    for keep in (False, True):
        node, _ = await one(reply, keep=keep)
        assert (node.text, node.thinking) == (text, thinking)
        assert node._handle.text.endswith(f"{text}\n")
        if not keep:
            assert node._handle.text.replace("\n", "") == f"{ROOT}{text}".replace("\n", "")


async def test_a_block_that_is_opened_again_has_the_rest_of_the_budget():
    node, search = await one("a</think>\n<think>\n" + "b" * 50 + "\n42\n", budget=20)
    assert node is None or "b" * 20 not in node.thinking
    assert search.ledger.thinking_tokens <= 20
    assert search.ledger.forced_closes == 1


async def test_all_branches_of_all_nodes_take_two_engine_calls():
    engine = MockEngine(lambda text, rng: f"{rng.random()}</think>" if text.endswith(OPEN) else f"{rng.random()}\n")
    calls = []
    generate = engine.generate
    engine.generate = lambda requests, account: calls.append(len(requests)) or generate(requests, account)
    search = make_search(task=make_task(thinking=Thinking()), engine=engine)
    nodes = await search.expand([search.root], 3)
    assert calls == [1, 3]
    assert len(await search.expand(nodes, 2)) == 6
    assert calls == [1, 3, 3, 6]


async def test_a_branch_does_not_depend_on_other_branches():
    def writer(text, rng):
        return f"{rng.random()}</think>" if text.endswith(OPEN) else f"{rng.random()}\n"

    task = make_task(thinking=Thinking())
    many, few = make_search(writer, task), make_search(writer, task)
    nodes, alone = await many.expand([many.root], 4), await few.expand([few.root], 1)
    assert (nodes[0].text, nodes[0].thinking) == (alone[0].text, alone[0].thinking)
    assert len({(node.text, node.thinking) for node in nodes}) == 4
    assert all(node.text != node.thinking for node in nodes)  # a stream of its own for each round
    beside = await many.expand(nodes, 1)
    assert (beside[0].text, beside[0].thinking) == ((await few.expand(alone, 1))[0].text, beside[0].thinking)


@pytest.mark.parametrize("keep", [False, True])
async def test_a_text_that_the_task_changes_follows_what_is_kept(keep):
    node, _ = await one("a</think>42\n", keep=keep, parse=lambda problem, path, text: Thought(f"= {text}"))
    assert node._handle.text == ROOT + ("<think>a</think>= 42\n" if keep else "= 42\n")


async def test_equal_texts_are_merged_when_their_blocks_differ():
    def writer(text, rng):
        return f"{rng.random()}</think>" if text.endswith(OPEN) else "42\n"

    search = make_search(writer, make_task(thinking=Thinking()))
    (node,) = await search.expand([search.root], 5)
    assert node.count == 5


async def test_a_step_inside_the_block_and_an_equal_text_after_it_are_two_nodes():
    def writer(text, rng):
        return rng.choice(["42\n", "so</think>"]) if text.endswith(OPEN) else "42\n"

    task = make_task(thinking=Thinking(thought="inside", keep=True), state_key=lambda problem, path: path.text)
    search = make_search(writer, task)
    inside, after = sorted(await search.expand([search.root], 9), key=lambda node: len(node._handle.text))
    assert {inside.text, after.text} == {"42"}
    assert (inside._handle.text, after._handle.text) == (f"{ROOT}<think>42\n", f"{ROOT}<think>so</think>42\n")
    assert inside.count + after.count == 9
    [longer] = await search.expand([inside], 1)
    assert longer._handle.text == f"{ROOT}<think>42\n42\n"  # the block is still open


async def test_a_rejected_thought_leaves_no_handle():
    def reject(problem, path, text):
        raise Reject("no")

    node, search = await one("a</think>42\n", k=3, keep=True, parse=reject)
    assert node is None
    assert search.engine.handles == 1


@pytest.mark.parametrize("thought", ["after", "inside", "whole"])
async def test_a_token_budget_cuts_blocks_without_an_error(thought):
    for tokens in range(1, 25):
        task = make_task(thinking=Thinking(budget=8, thought=thought))
        engine = MockEngine(scripted("abc\ndefgh</think>42\n", ROOT + OPEN))
        search = make_search(task=task, engine=engine, budget=Budget(tokens=tokens))
        await search.expand([search.root], 2)
        assert search.ledger.tokens_sampled <= tokens
        search.close()
        assert engine.handles == 0


@pytest.mark.parametrize("keep", [False, True])
async def test_a_context_without_room_rejects_the_thought(keep):
    for context in range(5, 45):
        engine = MockEngine(scripted("abcdefgh</think>42\n", ROOT + OPEN), context=context)
        search = make_search(task=make_task(thinking=Thinking(budget=8, keep=keep)), engine=engine)
        with contextlib.suppress(ContextOverflow):  # the root has no room for a block
            assert await search.expand([search.root], 2) or search.rejections
        search.close()
        assert engine.handles == 0


PARTS = st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", "think>", "a", "42", " ", "\n", "\n\n"])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(PARTS, max_size=12).map("".join),
    st.integers(1, 12),
    st.booleans(),
    st.sampled_from(["after", "inside", "whole"]),
)
async def test_no_reply_is_an_error_or_exceeds_its_budget(reply, budget, keep, thought):
    engine = MockEngine(scripted(reply, ROOT + OPEN))
    setting = Thinking(budget=budget, keep=keep, thought=thought)
    search = make_search(task=make_task(thinking=setting, max_thought_tokens=20), engine=engine)
    nodes = [search.root]
    while nodes := await search.expand(nodes, 2):
        for node in nodes:
            block = [n for n in search.tree.lineage(node) if n.thinking_tokens]
            assert sum(n.thinking_tokens for n in (block if thought == "inside" else [node])) <= budget
            if thought == "after":
                assert "</think>" not in node.text
                assert OPEN not in node.text
            if thought == "after" and keep:
                added = node._handle.text[len(search.tree[node.parent]._handle.text) :]
                assert added.startswith(OPEN)
                assert len(added.removeprefix(OPEN).partition("</think>")[0]) <= budget
    search.close()
    assert engine.handles == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"thinking": 512}, "thinking is 512, not None or a Thinking, such as Thinking(budget=512)"),
        ({"thinking": Thinking(), "mode": "propose"}, "thinking does not work in mode 'propose'"),
    ],
)
def test_a_wrong_setting_is_named(options, says):
    with pytest.raises(TaskError) as refused:
        make_search(task=make_task(**options))
    assert str(refused.value).startswith(says)


def test_prompt_variants_are_refused():
    task = make_task(thinking=Thinking(), prompt_variants=lambda problem: ["other"])
    with pytest.raises(ConfigError, match="thinking and prompt variants cannot be combined"):
        make_search(task=task)


@pytest.mark.parametrize("markers", [("<a>", "<a>"), ("", "</a>"), ("<a>", " ")])
def test_markers_must_be_two_different_texts(markers):
    with pytest.raises(ConfigError, match="not two different texts"):
        Thinking(markers=markers)


@pytest.mark.parametrize("keep", [False, True])
async def test_a_closing_follows_what_is_kept_of_the_block(keep):
    node, search = await one("a</think>42\n", keep=keep, max_thoughts=1, is_solution=lambda *_: False, closing="So: ")
    (answer,) = await search.expand([node], 1)
    assert answer.closing == "So: "
    assert answer._handle.text.startswith(ROOT + ("<think>a</think>42\nSo: " if keep else "42\nSo: "))
    assert (answer.thinking, answer.thinking_tokens) == ("", 0)


async def test_a_closing_inside_a_block_closes_the_block_first():
    task = make_task(
        thinking=Thinking(thought="inside"), is_solution=lambda problem, path: bool(path), max_thoughts=3,
        answer=lambda problem, path: path[-1].text if path[-1].closing else None, closing="So: ",
    )  # fmt: skip
    search = make_search(task=task, engine=MockEngine(scripted("one\ntwo\n", ROOT + OPEN)))
    (step,) = await search.expand([search.root], 1)
    assert not step.finished
    (answer,) = await search.expand([step], 1)
    assert answer._handle.text.startswith(f"{ROOT}<think>one\n</think>So: ")
    assert search.ledger.forced_closes == 1
    search.close()
    assert search.engine.handles == 0
