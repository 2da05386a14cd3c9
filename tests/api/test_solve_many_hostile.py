"""Misbehaving problems, plug-ins and callers: every problem has its outcome, and no run hangs."""

import asyncio
import itertools
import queue
import subprocess
import sys
import threading
import time

import pytest

from rksc_tot.api.solve_many import asolve_many, solve_many
from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError, RkscTotError
from rksc_tot.strategies import Strategy
from tests.api.small_task import TASK, make_engine
from tests.patience import PATIENCE


@pytest.fixture
def hold():
    """An event a source can wait for; set at the end, so that no thread stays."""
    event = threading.Event()
    yield event
    event.set()


# -- sources -------------------------------------------------------------------------------------------------------------


def test_the_problems_may_depend_on_earlier_outcomes():
    given = queue.Queue()
    given.put(0)
    run = solve_many(TASK, iter(lambda: given.get(timeout=PATIENCE), None), engine=make_engine(), concurrency=4)
    seen = []
    for outcome in run:
        seen.append(outcome.problem)
        given.put(outcome.problem + 1 if outcome.problem < 5 else None)
    assert seen == [0, 1, 2, 3, 4, 5]


async def test_searches_go_on_while_the_next_problem_is_awaited(hold):
    def source():
        yield "a"
        assert hold.wait(PATIENCE)
        yield "b"

    run = asolve_many(TASK, source(), engine=make_engine(), concurrency=4)
    seen = []
    async for outcome in run:
        seen.append(outcome.problem)
        hold.set()
    assert seen == ["a", "b"]


def plain(hold):
    yield "a"
    hold.wait(PATIENCE)
    raise AssertionError("waited for")


async def asynchronous(hold):
    yield "a"
    await asyncio.sleep(PATIENCE)
    raise AssertionError("waited for")


@pytest.mark.parametrize("source", [plain, asynchronous])
def test_the_seconds_of_a_run_end_the_wait_for_the_next_problem(source, hold):
    run = solve_many(TASK, source(hold), engine=make_engine(), run_budget=Budget(seconds=0.2))
    assert [outcome.problem for outcome in run] == ["a"]
    assert run.tally.stopped == "the run's budget of 0.2 seconds is used up"


@pytest.mark.parametrize("source", [plain, asynchronous])
def test_a_run_stopped_by_its_budget_does_not_wait_for_the_next_problem(source, hold):
    run = solve_many(TASK, source(hold), engine=make_engine(), run_budget=Budget(nodes=1))
    assert [outcome.verdict for outcome in run] == ["cut"]
    assert run.tally.stopped == "the run's budget of 1 node is used up"


def breaking(error):
    yield from ("a", "b")
    raise error


async def abreaking(error):
    for problem in ("a", "b"):
        yield problem
    raise error


@pytest.mark.parametrize("source", [breaking, abreaking])
@pytest.mark.parametrize(
    "error",
    [ValueError("x"), TimeoutError("x"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()],
)
def test_any_error_of_the_problems_is_raised_after_the_outcomes_of_running_searches(source, error):
    passes = not isinstance(error, asyncio.CancelledError | GeneratorExit)
    engine, seen = make_engine(), []
    run = solve_many(TASK, source(error), engine=engine)
    with pytest.raises(type(error) if passes else RkscTotError) as raised:
        seen.extend(outcome.problem for outcome in run)
    assert sorted(seen) == ["a", "b"]
    assert raised.value is error if passes else type(error).__name__ in str(raised.value)
    assert type(error).__name__ in run.tally.stopped
    assert engine.handles == 0


def test_a_run_leaves_no_thread():
    before = set(threading.enumerate())
    for outcome in solve_many(TASK, itertools.count(), engine=make_engine()):
        if outcome.id > 3:
            break
    list(solve_many(TASK, range(3), engine=make_engine()))
    until = time.monotonic() + PATIENCE
    while set(threading.enumerate()) - before and time.monotonic() < until:
        time.sleep(0.01)
    assert set(threading.enumerate()) <= before


class Says(list):
    """A list with a length of its own."""

    def __init__(self, items, length):
        super().__init__(items)
        self.length = length

    def __len__(self):
        return self.length()


@pytest.mark.parametrize("length", [lambda: 1, lambda: 9, lambda: -1, lambda: 1 / 0])
def test_problems_are_read_to_the_end_whatever_their_len_returns(length):
    run = solve_many(TASK, Says("abc", length), engine=make_engine())
    assert len([outcome for outcome in run if outcome.result]) == 3
    assert (run.tally.total, run.tally.not_started, run.tally.stopped) == (3, 0, "finished")


# -- searches ------------------------------------------------------------------------------------------------------------


class CancelsItself(Strategy):
    """A search that cancels its own task."""

    async def run(self, search):
        if search.problem == "bad":
            asyncio.current_task().cancel()
        await asyncio.sleep(0)


def test_a_search_cancelled_by_its_task_is_a_failure_and_the_others_go_on():
    engine = make_engine()
    run = solve_many(TASK, ["bad", "a", "bad", "b"], engine=engine, concurrency=1, strategy=CancelsItself())
    assert [outcome.verdict for outcome in run] == ["failed", "unanswered", "failed", "unanswered"]
    assert (run.tally.failed, run.tally.stopped, engine.handles) == (2, "finished", 0)


# -- the end -------------------------------------------------------------------------------------------------------------


async def test_a_run_closed_before_its_loop_starts_no_search():
    run = asolve_many(TASK, range(3), engine=make_engine())
    await run.aclose()
    with pytest.raises(ConfigError, match="already read"):
        async for _ in run:
            pass
    assert (run.tally.started, run.tally.stopped) == (0, "cancelled")


@pytest.mark.parametrize(
    ("what", "last"),
    [
        ("solve_many(TASK, itertools.count(), engine=e)", ""),
        ("solve_many(TASK, itertools.count(), engine=e)", "raise ValueError"),
        ("solve_many(TASK, itertools.count(), engine=e)", "sys.exit(0)"),
        ("stream(TASK, 1, engine=e)", ""),
    ],
)
def test_a_program_ends_though_it_has_not_gone_through_to_the_end_and_has_its_handles_back_before(what, last):
    program = f"""
import atexit, itertools, sys
from rksc_tot import solve_many, stream
from tests.api.small_task import TASK, make_engine
e = make_engine()
atexit.register(lambda: print(e.handles))
going = iter({what})
while next(going) and not e.handles:
    pass
{last}
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.stdout, ended.returncode) == ("0\n", 1 if "raise" in last else 0)
    assert "ignored" not in ended.stderr
    assert ended.stderr.count("Traceback") == ended.returncode
    assert bool(ended.stderr) == ("raise" in last)
