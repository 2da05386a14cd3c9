"""Many searches at once: outcomes equal those of single searches, and one failure does not affect the others."""

import asyncio
import gc
import itertools
import json
import logging
import random
import signal
import sys
import threading

import pytest

from rksc_tot import engine as engines
from rksc_tot.api.outcomes import Outcome, Problem
from rksc_tot.api.solve import asolve, solve
from rksc_tot.api.solve_many import PATIENCE, asolve_many, solve_many
from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError, ContextOverflow, EngineError, TaskError
from rksc_tot.core.task import function_task
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.strategies import BFS, Strategy
from tests import patience
from tests.game24_player import player, write

PUZZLES = ["4 5 6 10", "1 2 3 4", "2 5 8 11", "1 1 4 6", "1 1 3 8", "3 3 8 8"]
SMALL = BFS(b=2, k=6)


def make_task(**options):
    options = {
        "prompt": lambda problem: f"go {problem}\n",
        "is_solution": lambda problem, path: len(path) == 2,
    } | options
    return function_task(**{"max_thoughts": 2} | options)


def make_engine(**options):
    return MockEngine(lambda text, rng: f"{rng.randrange(1000)}\n", **options)


def found(outcomes):
    return {outcome.problem: outcome.result.tree.to_records() for outcome in outcomes}


def grown(result):
    """A tree without its numbers, which floating point may change in the last digits."""
    return result.path, [(n.branch, n.text, n.tokens, n.count, n.finished, n.pruned) for n in result.tree]


def refusing(bad):
    """A task that fails on some problems."""

    def validate(problem):
        if problem in bad:
            raise ValueError("a bad one")
        return problem

    return make_task(validate=validate)


# -- the same as one by one ----------------------------------------------------------------------------------------------


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


def test_an_outcome_has_the_given_id_or_its_position():
    problems = ["a", Problem("b", "name"), Problem("c", 17), "d"]
    outcomes = list(solve_many(make_task(), problems, engine=make_engine(), concurrency=1))
    assert [(outcome.id, outcome.problem) for outcome in outcomes] == [(1, "a"), ("name", "b"), (17, "c"), (4, "d")]
    for wrong in (None, 1.5, True, ("a",)):
        with pytest.raises(ConfigError, match="the id is "):
            Problem("a", wrong)


# -- failures ------------------------------------------------------------------------------------------------------------


def test_a_problem_that_fails_is_an_outcome_and_the_others_go_on():
    engine = make_engine()
    run = solve_many(refusing({3}), range(6), engine=engine, concurrency=2)
    outcomes = {outcome.problem: outcome for outcome in run}
    assert [p for p, outcome in outcomes.items() if outcome.failure] == [3]
    assert outcomes[3].failure == "3 does not fit the task: ValueError: a bad one - run check_task for details"
    assert isinstance(outcomes[3].error, TaskError)
    assert outcomes[3].verdict == "refused"
    assert (run.tally.finished, run.tally.refused, run.tally.failed) == (6, 1, 0)
    assert (run.tally.stopped, engine.handles) == ("finished", 0)


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), SystemExit(0), asyncio.CancelledError(), GeneratorExit()])
def test_any_error_of_a_plug_in_is_the_failure_of_its_problem(error):
    class Leaves(Strategy):
        async def run(self, search):
            if search.problem == 1:
                raise error

    outcomes = {o.problem: o for o in solve_many(make_task(), range(3), engine=make_engine(), strategy=Leaves())}
    assert [p for p, outcome in outcomes.items() if outcome.failure] == [1]
    assert type(error).__name__ in outcomes[1].failure


def test_a_check_that_raises_leaves_its_result_unchecked():
    task = make_task(check=lambda problem, answer: 1 / 0 if problem == 1 else True)
    run = solve_many(task, range(3), engine=make_engine())
    assert {outcome.problem: outcome.result.correct for outcome in run} == {0: True, 1: None, 2: True}
    assert run.tally.verdicts == {"right": 2, "unchecked": 1}
    assert run.tally.solved == 2


def test_an_engine_error_in_one_search_does_not_affect_the_others():
    def breaks(text, rng):
        return 1 / 0 if text.startswith("go 7\n") and text.count("\n") == 2 else f"{rng.randrange(1000)}\n"

    engine = MockEngine(breaks)
    outcomes = list(solve_many(make_task(), range(32), engine=engine, concurrency=32, strategy=SMALL))
    [failed] = [outcome for outcome in outcomes if outcome.failure]
    assert failed.problem == 7
    assert isinstance(failed.error, EngineError)
    assert len(failed.error.result.tree) > 1  # the best so far
    rest = [outcome for outcome in outcomes if outcome.result]
    assert found(rest) == found(
        solve_many(make_task(), [p for p in range(32) if p != 7], engine=make_engine(), strategy=SMALL)
    )
    assert engine.handles == 0


@pytest.mark.parametrize("concurrency", [1, 8])
def test_an_engine_that_fails_in_every_search_ends_the_run(concurrency):
    engine = make_engine()
    run = solve_many(make_task(), range(10_000), engine=engine, concurrency=concurrency)
    outcomes = iter(run)
    while next(outcomes).id != 20:
        pass
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        list(outcomes)
    assert "closed" in run.tally.stopped
    assert run.tally.failed <= max(PATIENCE, concurrency)
    assert run.tally.not_started > 9900


def test_problems_that_are_too_long_do_not_make_an_engine_count_as_broken():
    engine = make_engine(context=30)
    outcomes = list(solve_many(make_task(), ["x" * 40] * 20, engine=engine, concurrency=2))
    assert {type(outcome.error) for outcome in outcomes} == {ContextOverflow}
    assert len(outcomes) == 20


def test_an_outcome_is_written_without_its_error():
    [outcome] = solve_many(refusing({1}), [1], engine=make_engine())
    record = json.loads(outcome.model_dump_json())
    assert set(record) == {"id", "problem", "result", "failure", "refused"}
    assert Outcome.model_validate(record).failure == outcome.failure
    [outcome] = solve_many(make_task(), [1], engine=make_engine())
    assert Outcome.model_validate_json(outcome.model_dump_json()).result.tree == outcome.result.tree


# -- reading no more than is worked on -----------------------------------------------------------------------------------


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
    run = solve_many(task, map(str, range(2400)), engine=engine, concurrency=8, strategy=BFS(b=1, k=1))
    for outcome in run:
        if outcome.id % 200 == 0:
            gc.collect()
            blocks.append(sys.getallocatedblocks())
    assert run.tally.finished == 2400
    assert min(blocks[6:]) - max(blocks[:2]) < 800  # a thing kept of each problem would be 1000
    assert (engine.handles, engine.usage.kv_bytes) == (0, 0)


# -- the end -------------------------------------------------------------------------------------------------------------


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


# -- what is refused -----------------------------------------------------------------------------------------------------


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
    ("wrong", "says"), [("sede", "has no option 'sede' - there are strategy, "), ("on_event", "has no 'on_event'")]
)
def test_an_unknown_option_is_refused_by_the_called_function(start, wrong, says):
    with pytest.raises(ConfigError, match=f"^{start.__name__} {says}"):
        start(make_task(), [1], engine=make_engine(), **{wrong: 1})


def test_zero_solved_is_reported_if_the_task_has_a_check():
    for checked, solved in ((make_task(check=lambda problem, answer: True), 0), (make_task(), None)):
        run = solve_many(checked, range(3), engine=make_engine(), budget=Budget(tokens=1))
        assert {outcome.verdict for outcome in run} == {"unanswered"}
        assert (run.tally.solved, run.tally.limited) == (solved, 3)


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
