"""Verifiers made of functions: whatever the function does, the search knows what to do."""

import asyncio
import contextlib
import subprocess
import sys
import threading
import time

import pytest

from rksc_tot.api.solve import solve
from rksc_tot.core.budget import Budget, BudgetReached
from rksc_tot.core.errors import ConfigError, VerifierError
from rksc_tot.core.task import function_task
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.search import Search
from rksc_tot.verifiers import verifier
from tests.patience import PATIENCE

TASK = function_task(prompt=lambda problem: "go\n", is_solution=lambda problem, path: len(path) == 2, max_thoughts=2)


def make_search(verifier, **options):
    engine = MockEngine(lambda text, rng: f"{rng.getrandbits(40)}\n")
    return Search(TASK, "p", engine, verifier, **options)


async def scored(verifier, n=3, **options):
    search = make_search(verifier, **options)
    level = await search.expand([search.root], n)
    await search.score(level)
    return level


def test_bare_and_with_options():
    @verifier
    def plain(problem, path):
        return 1.0

    @verifier(timeout=2, attempts=3, wait=0.1, concurrency=4, on_error="raise", name="other")
    async def custom(problem, path):
        return 2.0

    assert (plain.name, plain("p", ()), plain.is_async) == ("plain", 1.0, False)
    assert (custom.name, custom.attempts, custom.is_async) == ("other", 3, True)


@pytest.mark.parametrize(
    "options",
    [{"timeout": 0}, {"attempts": 0}, {"wait": -1}, {"concurrency": 0}, {"on_error": "ignore"}, {"timeut": 1}],
)
def test_bad_options_are_refused(options):
    with pytest.raises(ConfigError, match=rf"^verifier '<lambda>': .*{next(iter(options))}[^\n]*$"):
        verifier(**options)(lambda problem, path: 1.0)


class Callable:
    async def __call__(self, problem, path):
        return 3


@pytest.mark.parametrize(
    ("function", "value"),
    [(lambda problem, path: 3, 3.0), (lambda problem, path: asyncio.sleep(0, 3.5), 3.5), (Callable(), 3.0)],
)
@pytest.mark.parametrize("timeout", [None, PATIENCE])
async def test_plain_and_async_functions_see_problem_and_path(function, value, timeout):
    level = await scored(verifier(timeout=timeout)(function))
    assert [node.score for node in level] == [value] * 3


async def test_the_function_is_given_problem_and_path():
    seen = []

    @verifier
    def look(problem, path):
        seen.append((problem, path.text))
        return 0.0

    level = await scored(look)
    assert seen == [("p", node.text) for node in level]


async def test_a_plain_function_is_called_for_one_node_at_a_time_by_default():
    running, most = 0, []
    lock = threading.Lock()

    def count(problem, path):
        nonlocal running
        with lock:
            running += 1
            most.append(running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return 1.0

    await scored(verifier(count), n=4)
    assert max(most) == 1
    most.clear()
    await scored(verifier(concurrency=4)(count), n=4)
    assert max(most) > 1


@pytest.mark.parametrize("timeout", [None, PATIENCE])
@pytest.mark.parametrize("error", [ValueError("oh no"), StopIteration(), TimeoutError("slow"), KeyError("k")])
async def test_a_node_on_which_it_raises_is_pruned_and_the_others_are_scored(timeout, error):
    calls = []

    @verifier(timeout=timeout)
    def sometimes(problem, path):
        calls.append(path)
        if len(calls) == 2:
            raise error
        return 1.0

    level = await scored(sometimes)
    assert [node.score for node in level] == [1.0, None, 1.0]
    assert f"verifier 'sometimes' failed on node 2: it raised {type(error).__name__}" in level[1].pruned


class Mute(Exception):
    def __str__(self):
        raise ValueError("no text")


@pytest.mark.parametrize("way", ["thread", "loop", "async", "async with a timeout"])
@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), asyncio.CancelledError(), Mute(), KeyError("k")])
async def test_whatever_it_raises_prunes_the_node_in_every_way_of_calling_it(error, way):
    calls = []

    def sometimes(problem, path):
        calls.append(path)
        if len(calls) == 2:
            raise error
        return 1.0

    async def sometimes_too(problem, path):
        return sometimes(problem, path)

    timeout = None if way in ("loop", "async") else PATIENCE
    level = await scored(verifier(timeout=timeout, name="v")(sometimes_too if "async" in way else sometimes))
    assert [node.score for node in level] == [1.0, None, 1.0]
    assert f"verifier 'v' failed on node 2: it raised {type(error).__name__}" in level[1].pruned


async def test_an_async_one_that_blocks_holds_up_the_deadline_once():
    calls = []

    @verifier
    async def blocks(problem, path):
        calls.append(path)
        time.sleep(0.3)
        return 1.0

    search = make_search(blocks, budget=Budget(seconds=0.2))
    await search.score(await search.expand([search.root], 6))
    assert len(calls) == 1


def test_an_async_one_that_ignores_its_cancellation_is_left_behind():
    release = threading.Event()

    @verifier(timeout=0.1)
    async def stubborn(problem, path):
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)
        raise ValueError("this error is not raised")

    engine = MockEngine(lambda text, rng: f"{rng.getrandbits(40)}\n")
    result = solve(TASK, "p", engine=engine, verifier=stubborn, budget=Budget(seconds=0.05))
    release.set()
    assert "seconds" in result.stopped
    for thread in threading.enumerate():
        if thread.name == "rksc_tot.closing":
            thread.join(PATIENCE)


async def test_on_error_raise_ends_the_search():
    @verifier(on_error="raise")
    def sometimes(problem, path):
        if "raise" in problem or len(path) > 1:
            raise ValueError("oh no")
        return 1.0

    search = make_search(sometimes)
    level = await search.expand([search.root], 2)
    await search.score(level)
    with pytest.raises(VerifierError, match=r"'sometimes' failed on node 3: it raised ValueError: oh no"):
        await search.score(await search.expand(level, 1))


@pytest.mark.parametrize("is_async", [True, False])
async def test_it_is_tried_again_before_a_node_is_given_up(is_async):
    calls = []

    def flaky(problem, path):
        calls.append(path.text)
        if calls.count(path.text) < 3:
            raise ConnectionError("try again")
        return 1.0

    async def flaky_too(problem, path):
        return flaky(problem, path)

    level = await scored(verifier(attempts=3, wait=0)(flaky_too if is_async else flaky), n=2)
    assert [node.score for node in level] == [1.0, 1.0]
    assert len(calls) == 6


async def test_it_says_how_often_it_tried():
    @verifier(attempts=2, wait=0)
    def never(problem, path):
        raise ConnectionError("gone")

    with pytest.raises(VerifierError, match="it raised ConnectionError: gone - tried 2 times"):
        await scored(never)


@pytest.mark.parametrize("value", [None, float("nan"), "1"])
async def test_a_wrong_value_is_not_tried_again(value):
    calls = []

    @verifier(attempts=5)
    def wrong(problem, path):
        calls.append(path)
        return value

    with pytest.raises(VerifierError, match=r"'wrong' returned .* for node 1"):
        await scored(wrong, n=1)
    assert len(calls) == 1


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_node_on_which_it_hangs_holds_up_no_other(is_async):
    release = threading.Event()

    def hang(problem, path):
        if path[-1].text == first[0]:
            release.wait(PATIENCE)
        return 1.0

    async def hang_too(problem, path):
        if path[-1].text == first[0]:
            await asyncio.sleep(PATIENCE)
        return 1.0

    search = make_search(verifier(timeout=0.2, name="slow")(hang_too if is_async else hang))
    level = await search.expand([search.root], 3)
    first = [level[0].text]
    await search.score(level)
    release.set()
    assert [node.score for node in level] == [None, 1.0, 1.0]
    assert (
        level[0].pruned
        == "verifier 'slow' failed on node 1: no score within 0.2 s - tried once; give it a longer timeout"
    )


def test_a_verifier_that_always_hangs_is_an_error_that_keeps_the_best_so_far():
    release = threading.Event()
    hang = verifier(timeout=0.05, name="stuck")(lambda problem, path: release.wait(PATIENCE))
    engine = MockEngine(lambda text, rng: f"{rng.getrandbits(40)}\n")
    with pytest.raises(VerifierError, match=r"'stuck' failed on node 1: no score within 0.05 s") as caught:
        solve(TASK, "p", engine=engine, verifier=hang)
    release.set()
    assert caught.value.result.ledger.nodes == 5
    assert caught.value.result.stopped.startswith("failed: verifier 'stuck'")
    assert engine.handles == 0


@pytest.mark.parametrize("timeout", [None, PATIENCE])
async def test_the_budget_of_seconds_ends_a_hanging_verifier(timeout):
    release = threading.Event()
    calls = []

    @verifier(timeout=timeout)
    def second_hangs(problem, path):
        calls.append(path)
        return 1.0 if len(calls) == 1 else release.wait(PATIENCE)

    search = make_search(second_hangs, budget=Budget(seconds=0.4))
    level = await search.expand([search.root], 3)
    await search.score(level)
    release.set()
    assert [node.score for node in level] == [1.0, None, None]
    assert [node.pruned for node in level] == [None] * 3
    assert len(calls) == 2
    assert "seconds" in search.limits.stopped
    with pytest.raises(BudgetReached):
        await search.score(level)


def test_a_hanging_thread_does_not_keep_the_program_from_ending():
    program = """
import time
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.api.solve import solve
from rksc_tot.core.task import function_task
from rksc_tot.verifiers import verifier
task = function_task(prompt=lambda p: "go", is_solution=lambda p, path: len(path) == 1)
hang = verifier(timeout=0.05)(lambda problem, path: time.sleep(600))
try:
    solve(task, "p", engine=MockEngine(lambda text, rng: "a\\n"), verifier=hang)
except Exception as error:
    print(type(error).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.stdout.strip(), done.returncode, done.stderr) == ("VerifierError", 0, "")
