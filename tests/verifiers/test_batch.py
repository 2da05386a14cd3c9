"""Function verifiers that score all paths in one call, and what functions see of a path."""

import asyncio
import threading

import numpy as np
import pytest
import torch

from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import VerifierError
from rksc_tot.core.task import Path, Thought, function_task
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.search import Search
from rksc_tot.verifiers import PathView, verifier
from tests.patience import PATIENCE


def make_search(verifier, **options):
    task = function_task(
        prompt=lambda problem: "go\n",
        is_solution=lambda problem, path: len(path) == 2,
        parse=lambda problem, path, text: Thought(text, state=int(text)),
    )
    return Search(task, "p", MockEngine(lambda text, rng: (f"{rng.getrandbits(40)}\n", -0.5)), verifier, **options)


async def scored(verifier, n=3, **options):
    search = make_search(verifier, **options)
    level = await search.expand([search.root], n)
    await search.score(level)
    return level


def plain(problem, paths):
    return [float(path.state) for path in paths]


async def waiting(problem, paths):
    await asyncio.sleep(0)
    return plain(problem, paths)


@pytest.mark.parametrize("timeout", [None, PATIENCE])
@pytest.mark.parametrize("function", [plain, waiting])
async def test_a_batch_is_one_call_and_each_path_gets_its_score(function, timeout):
    calls = []

    def counted(problem, paths):
        calls.append(len(paths))
        return function(problem, paths)

    level = await scored(verifier(batch=True, timeout=timeout)(counted), 5)
    assert [node.score for node in level] == [float(node.text) for node in level]
    assert calls == [5]


@pytest.mark.parametrize("make", [np.array, torch.tensor, tuple, iter])
async def test_arrays_tensors_and_iterators_are_scores_too(make):
    @verifier(batch=True)
    def counts(problem, paths):
        return make([0.25, 1, 2])

    assert [node.score for node in await scored(counts)] == [0.25, 1.0, 2.0]


@pytest.mark.parametrize("value", [1.0, None, [1.0], "abc", b"abc", {1: 1, 2: 2, 3: 3}, {1, 2, 3}])
async def test_a_value_without_a_score_for_each_path_ends_the_search(value):
    @verifier(batch=True)
    def wrong(problem, paths):
        return value

    with pytest.raises(
        VerifierError, match=r"'wrong' returned .* for a batch of 3 - return a list with a score for each"
    ):
        await scored(wrong)


@pytest.mark.parametrize("value", [float("nan"), "high", None])
async def test_a_score_in_a_batch_that_is_no_number_ends_the_search(value):
    @verifier(batch=True)
    def wrong(problem, paths):
        return [1.0, value, 1.0]

    with pytest.raises(VerifierError, match=r"'wrong' returned .* for node 2"):
        await scored(wrong)


async def test_a_batch_that_raises_is_tried_again_and_then_prunes_its_nodes():
    calls = []

    @verifier(batch=True, attempts=2, wait=0)
    def fails_on_two(problem, paths):
        calls.append(len(paths))
        if len(paths) == 2:
            raise ValueError("two")
        return [1.0] * len(paths)

    search = make_search(fails_on_two)
    await search.score(await search.expand([search.root], 3))
    level = await search.expand([search.root], 2, round=1)
    await search.score(level)
    assert calls == [3, 2, 2]
    for node in level:
        assert "failed on node" in node.pruned
        assert "ValueError: two - tried 2 times" in node.pruned


async def test_a_batch_that_hangs_is_given_up_and_after_the_deadline_nodes_have_no_score():
    stuck = threading.Event()

    @verifier(batch=True, timeout=0.05)
    def hangs(problem, paths):
        stuck.wait(PATIENCE)

    with pytest.raises(VerifierError, match=r"no score within 0\.05 s"):
        await scored(hangs)
    late = make_search(verifier(batch=True)(plain), budget=Budget(seconds=PATIENCE))
    level = await late.expand([late.root], 2)
    late.limits.account.deadline = 0.0
    assert await late.verifier.score(late, level) == [None, None]
    stuck.set()


@pytest.mark.parametrize("batch", [False, True])
async def test_a_function_sees_problem_path_texts_states_and_log_probabilities(batch):
    seen = []

    def look(problem, given):
        assert problem == "p"
        seen.extend(given if batch else [given])
        return [0.0] * len(given) if batch else 0.0

    search = make_search(verifier(batch=batch)(look))
    [first] = await search.expand([search.root], 1)
    children = await search.expand([first], 2)
    await search.score(children)
    assert seen == [search.path(node) for node in children]
    for view, node in zip(seen, children, strict=True):
        assert isinstance(view, PathView)
        assert isinstance(view, Path)
        assert view.texts == (first.text, node.text)
        assert view.states == (int(first.text), int(node.text))
        assert view.logprobs == (first.logprobs, node.logprobs)
        assert set(view.logprobs[1]) == {-0.5}
        assert view.finished
        assert view.exact


async def test_the_end_of_a_text_adds_no_thought_to_the_view():
    seen = []
    task = function_task(prompt=lambda problem: "go\n", is_solution=lambda problem, path: False)
    texts = iter(["one\n", ""])
    engine = MockEngine(lambda text, rng: next(texts))
    search = Search(task, "p", engine, verifier(lambda problem, path: seen.append(path) or 1.0))
    [first] = await search.expand([search.root], 1)
    await search.score(await search.expand([first], 1))
    assert [(view.texts, view.logprobs, view.finish, view.finished) for view in seen] == [
        (("one",), (first.logprobs,), "eos", True)
    ]
