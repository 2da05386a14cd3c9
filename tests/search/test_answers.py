"""The choice of the answer among complete paths."""

import numpy as np
import pytest

from rksc_tot.core.errors import ConfigError, TaskError
from rksc_tot.search.task_calls import read_verdict
from tests.search.mock_search import make_search, make_task


async def finished(search, n):
    nodes = await search.expand([search.root], n)
    assert all(node.finished for node in nodes)
    return nodes


async def test_the_best_is_the_best_candidate_handed_in_then_a_complete_path_then_the_deepest():
    search = make_search(task=make_task(depth=1, max_thoughts=3))
    assert search.best is search.root
    nodes = await finished(search, 3)
    nodes[2].score = 1.0
    assert search.best is nodes[2]
    search.prune(nodes[2], "no")
    assert search.best is nodes[0]
    search.finish(nodes[1])
    assert search.best is nodes[1]
    search.finish(nodes[0], value=5)
    assert search.best is nodes[0]


async def test_a_complete_path_is_better_than_a_deeper_one_that_is_not():
    short = lambda problem, path: len(path) == 1 and int(path[-1].text) % 2 == 0  # noqa: E731
    search = make_search(task=make_task(is_solution=short))
    level = await search.expand([search.root], 8)
    await search.expand([node for node in level if not node.finished], 1)
    assert max(node.depth for node in search.tree) == 2
    assert search.best.finished


async def test_an_unfinished_search_has_its_deepest_unpruned_path_as_best():
    search = make_search(task=make_task(depth=9))
    level = await search.expand([search.root], 2)
    level[1].score = 1.0
    assert search.best is level[1]
    [deep] = await search.expand(level[:1], 1)
    assert search.best is deep
    search.prune(deep, "no")
    assert search.best is level[1]


@pytest.mark.parametrize("answer", [lambda problem, path: None, lambda problem, path: path[7].text])
async def test_a_path_without_an_answer_is_not_a_candidate(answer):
    search = make_search(task=make_task(depth=1, answer=answer))
    nodes = await finished(search, 2)
    search.finish(nodes[0])
    assert nodes[0].pruned.startswith("answer r")
    assert search.answer(search.best) is None


@pytest.mark.parametrize("normalise", [lambda answer: [answer], lambda answer: answer.no])
async def test_an_answer_that_cannot_be_normalised_is_not_a_candidate(normalise):
    search = make_search(task=make_task(depth=1, normalise=normalise))
    [node] = await finished(search, 1)
    assert search.vote(node) is None
    assert node.pruned.startswith("normalise raised")
    with pytest.raises(TaskError, match="the task failed on every thought or answer: normalise raised"):
        search.conclude("finished")


@pytest.mark.parametrize("check", [np.bool_(True), np.array(True)])
def test_a_numpy_bool_is_a_valid_verdict(check):
    assert read_verdict(make_task(check=lambda problem, answer: check), "p", "a") == (True, None)


async def test_a_search_whose_paths_were_all_pruned_says_why():
    search = make_search()
    for node in await search.expand([search.root], 2):
        search.prune(node, "no good")
    assert search.conclude("finished") == "every path was pruned (node 1: no good) - let the strategy keep more nodes"


async def test_an_unfinished_path_cannot_be_handed_in():
    search = make_search()
    with pytest.raises(ConfigError, match="node 0"):
        search.finish(search.root)
