"""``solve_many``: results equal single searches, problems are read as searches start, and all handles are released."""

import asyncio
import gc
import itertools
import logging
import random
import signal
import sys
import threading

import pytest

from rksc_tot import engine as engines
from rksc_tot.api.solve import asolve, solve
from rksc_tot.api.solve_many import asolve_many, solve_many
from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.strategies import BFS, Strategy
from tests import patience
from tests.api.many_problems import SMALL, found, make_engine, make_task
from tests.game24_player import player, write

PUZZLES = ["4 5 6 10", "1 2 3 4", "2 5 8 11", "1 1 4 6", "1 1 3 8", "3 3 8 8"]


def grown(result):
    """A tree without its numbers, which floating point may change in the last digits."""
    return result.path, [(n.branch, n.text, n.tokens, n.count, n.finished, n.pruned) for n in result.tree]


@pytest.mark.parametrize("concurrency", [1, 4, 32])
def test_outcomes_equal_those_of_single_searches_at_any_concurrency(concurrency):
    alone = {p: solve("game24", p, engine=player(), strategy=SMALL).tree.to_records() for p in PUZZLES}
    shuffled = random.Random(concurrency).sample(PUZZLES, len(PUZZLES))
    engine = player()
    assert found(solve_many("game24", shuffled, engine=engine, concurrency=concurrency, strategy=SMALL)) == alone
    assert engine.handles == 0


def test_outcomes_equal_those_of_single_searches_on_the_embedded_model():
    with engines.load_engine() as engine:
        alone = {p: grown(solve("game24", p, engine=engine, strategy=SMALL)) for p in PUZZLES[:3]}
        engine.clear()
        together = solve_many("game24", PUZZLES[:3], engine=engine, strategy=SMALL)
        assert {outcome.problem: grown(outcome.result) for outcome in together} == alone


def test_settings_reach_every_search():
    options = {"strategy": BFS(b=1, k=2), "verifier": "random", "budget": Budget(nodes=9), "seed": 4}
    [outcome] = solve_many("game24", PUZZLES[:1], engine=player(), **options)
    assert outcome.result.settings == solve("game24", PUZZLES[0], engine=player(), **options).settings


async def test_problems_are_read_as_searches_start():
    read, taken = [], 0

    def endless():
        for problem in itertools.count():
            read.append(problem)
            yield problem

    run = asolve_many(make_task(), endless(), engine=make_engine(), concurrency=4)
    assert read == []
    async for _ in run:
        taken += 1
        await asyncio.sleep(0.002)  # everything that may run ends meanwhile
        assert len(read) <= taken + 4
        if taken == 20:
            break
    await run.aclose()
    assert len(read) == run.tally.started <= 20 + 4


async def test_a_slow_loop_makes_the_run_wait():
    run = asolve_many(make_task(), itertools.count(), engine=make_engine(), concurrency=3)
    async for _ in run:
        for _ in range(200):
            await asyncio.sleep(0)
        assert run.tally.started - run.tally.finished <= 3
        if run.tally.finished == 10:
            break
    await run.aclose()


def test_searches_go_on_while_the_loop_works():
    written = threading.Event()

    def writer(text, rng):
        if text.startswith("go 5"):
            written.set()
        return "x\n"

    for _ in solve_many(make_task(), range(6), engine=MockEngine(writer), concurrency=5):
        assert written.wait(patience.PATIENCE)  # problem 5 is started when the first outcome is taken


def test_an_error_of_the_problems_is_raised_after_the_outcomes_of_running_searches():
    def breaks():
        yield from range(5)
        raise KeyError("midway")

    engine, seen = make_engine(), []
    run = solve_many(make_task(), breaks(), engine=engine, concurrency=8)
    with pytest.raises(KeyError, match="midway"):
        seen.extend(outcome.problem for outcome in run)
    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert engine.handles == 0
    assert "KeyError" in run.tally.stopped


async def test_problems_may_come_from_an_async_iterable():
    async def given():
        for problem in range(5):
            await asyncio.sleep(0)
            yield problem

    run = asolve_many(make_task(), given(), engine=make_engine(), concurrency=2)
    assert sorted([outcome.problem async for outcome in run]) == [0, 1, 2, 3, 4]


def test_thousands_of_problems_leave_nothing_behind():
    engine, blocks = make_engine(), []
    task = make_task(is_solution=lambda problem, path: len(path) == 1, max_thoughts=1)
    run = solve_many(task, map(str, range(1600)), engine=engine, concurrency=8, strategy=BFS(b=1, k=1))
    for outcome in run:
        if outcome.id % 100 == 0:
            gc.collect()
            blocks.append(sys.getallocatedblocks())
    assert run.tally.finished == 1600
    assert min(blocks[6:]) - max(blocks[:2]) < 400  # a thing kept of each problem would be 500
    assert (engine.handles, engine.usage.kv_bytes) == (0, 0)


def test_leaving_the_loop_early_cancels_running_searches_and_releases_all_handles():
    engine = make_engine()
    run = solve_many(make_task(), itertools.count(), engine=engine, concurrency=4)
    for outcome in run:
        if outcome.id > 5:
            break
    gc.collect()  # the loop's generator may linger until then
    assert (engine.handles, run.tally.stopped) == (0, "cancelled")
    with pytest.raises(ConfigError, match="already read"):
        next(iter(run))


def test_a_second_loop_is_refused_and_leaves_the_first_alone():
    run = solve_many(make_task(), range(9), engine=make_engine(), concurrency=2)
    first = iter(run)
    next(first)
    with pytest.raises(ConfigError, match="already read"):
        list(run)
    assert len(list(first)) == 8
    with pytest.raises(ConfigError, match="already read"):
        list(run)


def test_ctrl_c_cancels_running_searches_and_releases_all_handles():
    def interrupted(text, rng):
        if text.startswith("go 9\n"):
            signal.raise_signal(signal.SIGINT)
        return "x\n"

    engine = MockEngine(interrupted)
    with pytest.raises(KeyboardInterrupt):
        for _ in solve_many(make_task(), itertools.count(), engine=engine, concurrency=4):
            pass
    gc.collect()
    assert engine.handles == 0


def test_an_error_in_the_loop_stops_the_run():
    engine = make_engine()
    with pytest.raises(ZeroDivisionError):
        sum(1 // 0 for _ in solve_many(make_task(), itertools.count(), engine=engine, concurrency=4))
    gc.collect()
    assert engine.handles == 0


async def test_closing_an_async_run_cancels_running_searches_and_releases_all_handles():
    engine = make_engine()
    run = asolve_many(make_task(), itertools.count(), engine=engine, concurrency=4)
    async for _ in run:
        break
    await run.aclose()
    await run.aclose()
    assert engine.handles == 0
    with pytest.raises(ConfigError, match="already read"):
        async for _ in run:
            pass


async def test_a_run_closed_by_another_task_ends():
    engine = make_engine()
    run = asolve_many(make_task(), itertools.count(), engine=engine, concurrency=4)

    async def consume():
        return [outcome.id async for outcome in run]

    consumer = asyncio.create_task(consume())
    while run.tally.finished < 10:
        await asyncio.sleep(0)
    await run.aclose()
    assert len(await asyncio.wait_for(consumer, patience.PATIENCE)) >= 10
    assert (engine.handles, run.tally.stopped) == (0, "cancelled")


async def test_cancelling_the_consumer_cancels_all_searches():
    engine = make_engine()

    async def consume():
        async for _ in asolve_many(make_task(), itertools.count(), engine=engine, concurrency=4):
            pass

    consumer = asyncio.create_task(consume())
    for _ in range(50):
        await asyncio.sleep(0)
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert engine.handles == 0


async def test_a_plain_loop_works_in_a_running_event_loop():
    assert len(list(solve_many(make_task(), range(4), engine=make_engine()))) == 4


async def test_two_runs_share_an_engine_and_each_warning_names_its_problem_once(caplog):
    task = make_task(check=lambda problem, answer: 1 / 0)
    engine = make_engine()

    async def ids(problems):
        return [outcome.problem async for outcome in asolve_many(task, problems, engine=engine)]

    one, two = await asyncio.gather(ids(range(5)), ids(range(5, 9)))
    assert (sorted(one), sorted(two)) == ([0, 1, 2, 3, 4], [5, 6, 7, 8])
    said = sorted(record.getMessage().partition(": check raised ZeroDivisionError")[0] for record in caplog.records)
    assert said == list("012345678")
    assert not logging.getLogger("rksc_tot").filters
    await asolve(task, 1, engine=engine)
    assert caplog.records[-1].getMessage().startswith("check raised")


@pytest.mark.parametrize("problems", ["4 5 6 10", b"4", {"a": 1}, 7, None])
def test_a_value_that_is_not_an_iterable_of_problems_is_refused(problems):
    with pytest.raises(ConfigError, match="give a list or another iterable of problems"):
        solve_many(make_task(), problems, engine=make_engine())


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True, "8"])
def test_an_invalid_concurrency_is_refused(concurrency):
    with pytest.raises(ConfigError, match="at least 1"):
        solve_many(make_task(), [1], engine=make_engine(), concurrency=concurrency)


@pytest.mark.parametrize(
    "options",
    [{"strategy": "bsf"}, {"verifier": "prm"}, {"engine": None}, {"budget": 7}, {"run_budget": 7}, {"rksc": 7}],
)
def test_a_wrong_setting_is_refused_before_a_problem_is_read(options):
    def unread():
        pytest.fail("read")
        yield

    with pytest.raises(ConfigError):
        solve_many(make_task(), unread(), **{"engine": make_engine()} | options)


@pytest.mark.parametrize("start", [solve_many, asolve_many])
@pytest.mark.parametrize(
    ("wrong", "says"),
    [("sede", "has no option 'sede' - did you mean 'seed'"), ("on_event", "has no 'on_event'")],
)
def test_an_unknown_option_is_refused_by_the_called_function(start, wrong, says):
    with pytest.raises(ConfigError, match=f"^{start.__name__} {says}"):
        start(make_task(), [1], engine=make_engine(), **{wrong: 1})


def test_a_run_budget_with_kv_bytes_is_refused():
    with pytest.raises(ConfigError, match="--kv-budget"):
        solve_many(make_task(), [1], engine=make_engine(), run_budget=Budget(kv_bytes=1))


def test_a_run_without_problems_has_no_outcomes():
    run = solve_many(make_task(), [], engine=make_engine())
    assert list(run) == []
    assert (run.tally.stopped, run.tally.not_started) == ("finished", 0)


def test_one_slow_problem_does_not_delay_the_others():
    release = threading.Event()

    class Waits(Strategy):
        async def run(self, search):
            if search.problem == 0:
                while not release.is_set():
                    await asyncio.sleep(0.001)

    order = []
    for outcome in solve_many(make_task(), range(8), engine=player(write), concurrency=2, strategy=Waits()):
        order.append(outcome.problem)
        if len(order) == 7:
            release.set()
    assert order[-1] == 0
