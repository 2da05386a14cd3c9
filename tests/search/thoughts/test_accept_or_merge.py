"""A candidate thought becomes a node, is merged, or is rejected."""

import asyncio

import pytest

from rksc_tot.core.budget import BudgetReached
from rksc_tot.core.errors import ContextOverflow, TaskError
from rksc_tot.core.task import Reject, Thought
from tests.search.mock_search import digits, fail, make_search, make_task, sorted_key, texts


class Incomparable:
    def __hash__(self):
        return 1

    def __eq__(self, other):
        raise ValueError("which?")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"parse": lambda problem, path, text: fail(Reject("not nice"))}, "not nice"),
        ({"parse": lambda problem, path, text: fail(KeyError("x"))}, "parse raised KeyError: 'x'"),
        ({"parse": lambda problem, path, text: text}, "not a Thought"),
        (
            {"is_solution": lambda problem, path: bool(path and fail(ValueError("bad")))},
            "is_solution raised ValueError: bad",
        ),
        ({"state_key": lambda problem, path: [1] if path else None}, "state_key raised TypeError"),
        ({"state_key": lambda problem, path: fail(OSError()) if path else None}, "state_key raised OSError"),
        ({"max_thought_tokens": 3}, "cut off at max_thought_tokens 3 - raise it"),
        ({"parse": lambda problem, path, text: fail(SystemExit(0))}, "parse raised SystemExit: 0"),
        ({"parse": lambda problem, path, text: fail(asyncio.CancelledError())}, "parse raised CancelledError"),
        ({"parse": lambda problem, path, text: Thought(None)}, "not a Thought with a text"),
        ({"parse": lambda problem, path, text: Thought("\ud800")}, "half a character"),
        ({"state_key": lambda problem, path: Incomparable()}, "comparing two state_keys raised ValueError"),
    ],
)
async def test_a_reply_the_task_cannot_use_is_rejected_with_the_reason(options, reason):
    events = []
    search = make_search(task=make_task(**options), events=events)
    assert await search.expand([search.root], 3) == []
    assert search.ledger.rejected == 3
    rejected = [event for event in events if event.kind == "rejected"]
    assert len(rejected) == 3
    assert all(reason in event.reason for event in rejected)
    assert search.engine.handles == 1


async def test_truncated_thoughts_become_nodes_only_where_the_task_accepts_them():
    search = make_search(task=make_task(max_thought_tokens=3, accept_truncated=True))
    assert [len(node.text) for node in await search.expand([search.root], 2)] == [3, 3]


@pytest.mark.parametrize("reply", ["", "\n", "   \n", "\x00\ufffd\n", "<b>**</b>[/INST]\n", "é" * 500])
async def test_unusual_replies_are_accepted_or_rejected(reply):
    search = make_search(writer=lambda text, rng: reply)
    children = await search.expand([search.root], 2)
    assert sum(node.count for node in children) + search.ledger.rejected == 2


async def test_a_path_that_outgrows_the_context_is_rejected_alone():
    writer = lambda text, rng: "x" * (30 if rng.random() < 0.5 else 1) + f"{rng.randrange(99)}\n"  # noqa: E731
    search = make_search(writer=writer, context=28, task=make_task(max_thought_tokens=25, accept_truncated=True))
    level = await search.expand([search.root], 6)
    assert {len(node.tokens) for node in level} > {25}
    children = await search.expand(level, 1)
    assert {search.tree[node.parent].id for node in children} == {node.id for node in level if len(node.tokens) < 20}


def test_a_prompt_longer_than_the_context_is_refused():
    with pytest.raises(ContextOverflow):
        make_search(context=2)


@pytest.mark.parametrize("method", ["prompt", "is_solution", "state_key"])
def test_a_task_that_fails_at_the_root_is_a_task_error_with_the_problem(method):
    task = make_task(**{method: lambda *args: fail(ZeroDivisionError("oh"))})
    with pytest.raises(TaskError, match=rf"{method} raised ZeroDivisionError: oh .*'p'"):
        make_search(task=task)


async def test_reasons_for_rejected_thoughts_are_counted():
    search = make_search(
        writer=digits, task=make_task(parse=lambda problem, path, text: fail(Reject("a" if text < "5" else "b")))
    )
    await search.expand([search.root], 40)
    assert set(search.rejections) == {"a", "b"}
    assert search.rejections.total() == search.ledger.rejected == 40


async def test_equal_states_are_one_node_over_the_whole_tree():
    search = make_search(
        writer=lambda text, rng: rng.choice("ab") + "\n", task=make_task(depth=4, state_key=sorted_key)
    )
    frontier = [search.root]
    while frontier:
        frontier = await search.expand(frontier, 8)
    keys = [sorted_key("p", search.path(node)) for node in search.tree]
    assert len(keys) == len(set(keys)) == 1 + 2 + 3 + 4 + 5


async def test_a_thought_that_leads_back_to_the_root_is_merged_into_it():
    events = []
    search = make_search(task=make_task(state_key=lambda problem, path: 0), events=events)
    assert await search.expand([search.root], 2) == []
    assert search.root.count == 3
    assert [event.into for event in events if event.kind == "merged"] == [0, 0]


async def test_without_merging_only_repeated_siblings_share_a_node():
    search = make_search(writer=lambda text, rng: rng.choice("ab") + "\n", task=make_task(state_key=lambda *a: 0))
    level = await search.expand([search.root], 8, merge=False)
    assert sorted(texts(level)) == ["a", "b"]
    assert sum(node.count for node in level) == 8


async def test_texts_that_parse_to_the_same_thought_are_one():
    task = make_task(parse=lambda problem, path, text: Thought(text.strip().lower()))
    search = make_search(writer=lambda text, rng: rng.choice(["a", " A", "a "]) + "\n", task=task)
    [node] = await search.expand([search.root], 9)
    assert (node.text, node.count) == ("a", 9)


async def test_pending_handles_are_released_if_a_callback_raises():
    search = make_search()
    search.listen(lambda event: fail(BudgetReached("enough")) if event.kind == "added" and event.node.id == 2 else None)
    with pytest.raises(BudgetReached):
        await search.expand([search.root], 5)
    search.close()
    assert search.engine.handles == 0


# -- the end of the text, and texts that the task changes --------------------------------------------------------------------


def says(*thoughts):
    """A writer that writes these texts one after the other, and then nothing but the end of its text."""

    def write(text, rng):
        at = sum(text.count(thought) for thought in set(thoughts))
        return thoughts[at] if at < len(thoughts) else ""

    return write


def never(problem, path):
    return False


async def test_the_end_of_the_text_completes_a_path_and_the_task_sees_it():
    search = make_search(writer=says("one\n", "Answer: 7 "), task=make_task(is_solution=never))
    [one] = await search.expand([search.root], 2)
    [end] = await search.expand([one], 3)
    assert (one.finish, one.finished, end.finish, end.finished, end.count) == ("stop", False, "eos", True, 3)
    assert search.path(end).finish == end.thought.finish == "eos"
    assert search.answer(end) == "Answer: 7"
    assert await search.expand([end], 1) == []


async def test_a_model_that_only_ends_its_text_completes_the_path_so_far():
    search = make_search(writer=says("one\n"), task=make_task(is_solution=never, state_key=lambda p, path: path.text))
    [one] = await search.expand([search.root], 2)
    [end] = await search.expand([one], 3)
    assert (end.text, end.finish, end.finished, end.count, end.parent) == ("", "eos", True, 3, one.id)
    assert texts(search.path(end)) == ["one"]
    assert [search.path(node).finish for node in (one, end)] == ["stop", "eos"]
    assert search.answer(end) == "one"
    await search.score([one, end])
    assert end.score is not None
    reloaded = type(search.tree).from_json(search.tree.to_json())
    assert [reloaded.path(reloaded[id]) for id in (1, 2)] == [search.path(node) for node in (one, end)]
    search.close()
    assert search.engine.handles == 0


async def test_equal_texts_with_and_without_an_end_are_two_nodes():
    writer = lambda text, rng: "7" + "\n" * (rng.random() < 0.5)  # noqa: E731
    search = make_search(writer=writer, task=make_task(is_solution=never, state_key=lambda p, path: path.text))
    nodes = await search.expand([search.root], 20)
    assert {(node.text, node.finish, node.finished) for node in nodes} == {("7", "stop", False), ("7", "eos", True)}
    assert sum(node.count for node in nodes) == 20


async def test_a_task_may_refuse_the_end_of_the_text():
    seen = []
    by_eos = lambda problem, path: bool(seen.append(path.finish)) or len(path) == 2  # noqa: E731
    task = make_task(is_solution=by_eos, end_completes=False)
    search = make_search(writer=lambda text, rng: "one" if text == "p:\n" else "", task=task)
    [one] = await search.expand([search.root], 1)
    assert (one.finish, one.finished) == ("eos", False)
    assert await search.expand([one], 2) == []
    assert search.rejections == {"the model ended its text here": 2}
    assert seen == [None, "eos"]


async def test_an_end_of_the_text_right_after_the_prompt_is_rejected():
    search = make_search(writer=lambda text, rng: "", task=make_task(is_solution=never))
    assert await search.expand([search.root], 2) == []
    assert search.rejections == {"the model ended its text here": 2}


async def test_an_accepted_truncated_thought_has_finish_length():
    search = make_search(task=make_task(max_thought_tokens=3, accept_truncated=True))
    assert {node.finish for node in await search.expand([search.root], 2)} == {"length"}


async def test_a_blank_line_before_the_first_word_is_skipped_and_stays_on_the_path():
    search = make_search(writer=lambda text, rng: "\n\nstep\n")
    [node] = await search.expand([search.root], 2)
    assert (node.text, node._handle.text, len(node.logprobs)) == ("step", "p:\n\n\nstep\n", 7)
    assert search.ledger.tokens_sampled == 14
    plain = make_search(writer=lambda text, rng: "\n\nstep\n", task=make_task(skip_blank=False))
    assert await plain.expand([plain.root], 2) == []
    assert plain.rejections == {"the thought is empty": 2}
    taken = make_task(skip_blank=False, parse=lambda problem, path, text: Thought(text))
    asked = make_search(writer=lambda text, rng: "\n\nstep\n", task=taken)
    assert [node.text for node in await asked.expand([asked.root], 2)] == [""]


@pytest.mark.parametrize("mode", ["sample", "propose"])
async def test_the_model_continues_from_the_text_of_parse(mode):
    task = make_task(mode=mode, parse=lambda problem, path, text: Thought(f"{text.strip()} # seen"))
    search = make_search(writer=lambda text, rng: f"{rng.randrange(10)}\n", task=task)
    [node] = await search.expand([search.root], 1)
    assert node._handle.text == f"p:\n{node.text}\n"
    assert node.text.endswith("# seen")
    assert (node.tokens, node.logprobs) == ((), ())  # nothing of it was drawn as it stands
    [child] = await search.expand([node], 1)
    assert child._handle.text == f"p:\n{node.text}\n{child.text}\n"
    assert search.engine.handles == 3


async def test_white_space_removed_by_parse_does_not_change_the_path():
    task = make_task(parse=lambda problem, path, text: Thought(text.strip()))
    search = make_search(writer=lambda text, rng: " 7 \n", task=task)
    [node] = await search.expand([search.root], 1)
    assert (node.text, node._handle.text, len(node.tokens)) == ("7", "p:\n 7 \n", 4)


async def test_a_changed_text_that_does_not_fit_the_context_is_rejected():
    task = make_task(parse=lambda problem, path, text: Thought("x" * 60))
    search = make_search(writer=lambda text, rng: "7\n", task=task, context=40)
    assert await search.expand([search.root], 1) == []
    assert search.ledger.rejected == 1
    assert search.engine.handles == 1
