"""Each problem has one outcome; a failure in one search does not affect the others."""

import asyncio
import json

import pytest

from rksc_tot.api.outcomes import Outcome
from rksc_tot.api.solve_many import PATIENCE, solve_many
from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError, ContextOverflow, EngineError, TaskError
from rksc_tot.core.task import Problem
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.strategies import Strategy
from tests.api.many_problems import SMALL, found, make_engine, make_task, refusing


def test_an_outcome_has_the_given_id_or_its_position():
    problems = ["a", Problem("b", "name"), Problem("c", 17), "d"]
    outcomes = list(solve_many(make_task(), problems, engine=make_engine(), concurrency=1))
    assert [(outcome.id, outcome.problem) for outcome in outcomes] == [(1, "a"), ("name", "b"), (17, "c"), (4, "d")]
    for wrong in (None, 1.5, True, ("a",)):
        with pytest.raises(ConfigError, match="the id is "):
            Problem("a", wrong)


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


def test_zero_solved_is_reported_if_the_task_has_a_check():
    for checked, solved in ((make_task(check=lambda problem, answer: True), 0), (make_task(), None)):
        run = solve_many(checked, range(3), engine=make_engine(), budget=Budget(tokens=1))
        assert {outcome.verdict for outcome in run} == {"unanswered"}
        assert (run.tally.solved, run.tally.limited) == (solved, 3)
