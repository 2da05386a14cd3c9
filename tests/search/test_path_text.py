"""``Path.text`` is the text on the KV path, whatever stands between thoughts."""

import pytest

from rksc_tot.core.task import Reject, Thought
from rksc_tot.core.tree import ReasoningTree
from tests.search.mock_search import make_search, make_task

PROMPT = "p:\n"
WORDS = "1. Add. It is 15. So\n2. Double it. Yes\n```\nx = 1\n```\n\n3. <b>End</b> of it. Ok\n\n4. 5 | 6. 7 = 8 | "


def written(text, rng):
    return (WORDS * 9)[len(text) - len(PROMPT) :]


async def grown(depth=3, writer=written, **options):
    """A search of one path, and its last node."""
    task = make_task(depth, is_solution=lambda problem, path: False, **options)
    search = make_search(writer, task)
    [node] = [search.root]
    for _ in range(depth):
        [node] = await search.expand([node], 1)
    return search, node


def on_path(node):
    return node._handle.text.removeprefix(PROMPT)


@pytest.mark.parametrize(
    "options",
    [
        *({"thoughts": form} for form in ("lines", "lines:2", "paragraphs", "numbered", "tag:b", "sentences", "sentences:2")),
        *({"thoughts": form} for form in ("fences", "tokens:7")),
        {"stop": (". ", "\n")},
        {"stop": (". ", "\n"), "keep_stop": False},
        {"stop": ("zzz",), "max_thought_tokens": 5, "accept_truncated": True},
    ],
    ids=str,
)  # fmt: skip
async def test_the_text_of_a_path_is_the_text_on_its_kv_but_for_the_last_ending(options):
    search, node = await grown(**options)
    path = search.path(node)
    assert path.text + path[-1].ending == on_path(node)
    assert len(path) == 3
    again = ReasoningTree.from_json(search.tree.to_json())
    assert again.path(again[node.id]).text == path.text


@pytest.mark.parametrize("form", ["lines", "tokens:4", "sentences"])
@pytest.mark.parametrize("said", ["= 42", "= 42\n"])
async def test_an_observation_stands_in_the_text_where_it_stands_on_the_path(form, said):
    search, node = await grown(2, thoughts=form, observe=lambda problem, path: said)
    path = search.path(node)
    assert (path.text + path[-1].ending).removesuffix("\n") == on_path(node).removesuffix("\n")
    assert path.text.count("= 42") == 2


@pytest.mark.parametrize(("form", "closing"), [("lines", "So: "), ("tokens:4", "\nSo: "), ("tokens:4", "So: ")])
async def test_a_closing_stands_in_the_text_where_it_stands_on_the_path(form, closing):
    search, node = await grown(2, thoughts=form, closing=closing)
    [closed] = await search.expand([node], 1)
    assert on_path(closed).startswith(search.path(closed).text)


async def test_a_blank_line_after_a_thought_that_a_limit_cut_off_is_in_the_text():
    search, node = await grown(
        2, lambda text, rng: "abcd\n\nefgh"[len(text) - len(PROMPT) :], thoughts="paragraphs", max_thought_tokens=4,
        accept_truncated=True,
    )  # fmt: skip
    assert search.path(node).text == on_path(node) == "abcd\n\nef"


async def test_an_observation_after_a_thought_that_a_limit_cut_off_is_in_the_text():
    observed = {"max_thought_tokens": 4, "accept_truncated": True, "observe": lambda problem, path: "= 42"}
    search, node = await grown(2, lambda text, rng: "abcdefgh", **observed)
    assert search.path(node).text + "\n" == on_path(node)


async def test_proposed_and_changed_thoughts_end_like_the_texts_that_go_on_their_paths():
    search, node = await grown(2, lambda text, rng: "a\nb\n\n", mode="propose", stop=(" ;", "\n"))
    assert (search.path(node).text, on_path(node)) == ("a ;a", "a ;a ;")

    def shout(problem, path, text):
        if text.isspace():
            raise Reject("blank")
        return Thought(text.upper())

    search, node = await grown(2, lambda text, rng: "a\n", parse=shout, stop=(" ;", "\n"))
    assert (search.path(node).text, on_path(node)) == ("A ;A", "A ;A ;")


async def test_the_task_sees_the_text_on_the_path_while_the_path_grows():
    seen = []
    await grown(3, thoughts="tokens:4", state_key=lambda problem, path: seen.append(path.text))
    assert seen[-3:] == [WORDS[:4], WORDS[:8], WORDS[:12]]
