"""``solve`` and ``asolve``: results, and errors with the best result so far."""

import asyncio
import contextlib
import logging
import subprocess
import sys

import pytest

import rksc_tot
from rksc_tot.api.result import Result
from rksc_tot.api.solve import asolve, solve
from rksc_tot.core.budget import Budget, BudgetReached
from rksc_tot.core.errors import ConfigError, EngineError, VerifierError
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.strategies import BFS, DFS, Strategy
from rksc_tot.verifiers import verifier
from tests.api.small_task import make_engine, make_task
from tests.patience import PATIENCE


def test_a_result_has_answer_path_ledger_and_settings():
    task = make_task(check=lambda problem, answer: answer.isdigit(), name="numbers")
    result = solve(task, 7, engine=make_engine(), strategy=BFS(b=2, k=3), budget=Budget(nodes=99), seed=4)
    assert result.problem == "7"
    assert (result.answer, result.correct) == (result.path[-1], True)
    assert [node.text for node in result.tree.lineage(result.tree[result.best])[1:]] == result.path
    assert result.stopped == "finished"
    assert result.settings["strategy"] == {"name": "bfs", "b": 2, "k": 3}
    assert result.settings["verifier"] == {"name": "likelihood", "of": "thought"}
    assert result.settings["seed"] == 4
    assert result.settings["budget"] == {"nodes": 99}
    assert (result.numerics["rksc_tot"], result.numerics["model"]) == (rksc_tot.__version__, "mock")
    assert set(result.ledger.seconds) == {"expand", "score", "total"}
    assert result.ledger.seconds["expand"] + result.ledger.seconds["score"] <= result.ledger.seconds["total"]


def test_the_result_names_the_problem_as_it_was_given():
    task = make_task(validate=lambda problem: tuple(map(int, problem)))
    assert [solve(task, given, engine=make_engine()).problem for given in ("12", ["1", "2"])] == ["12", "(1, 2)"]


@pytest.mark.parametrize("correct", [True, False, None])
def test_the_tasks_check_is_reported_and_never_used_by_the_search(correct):
    assert solve(make_task(check=lambda problem, answer: correct), 1, engine=make_engine()).correct is correct


async def test_solve_works_in_a_running_event_loop():
    result = solve(make_task(), 1, engine=make_engine())
    again = await asolve(make_task(), 1, engine=make_engine())
    assert result.tree.to_json() == again.tree.to_json()
    with pytest.raises(ConfigError):
        solve(make_task(), 1, engine=make_engine(), strategy="bsf")


def test_an_error_in_mid_search_carries_the_best_so_far():
    @verifier(timeout=None)
    def late(problem, path):
        return None if len(path) == 2 and path[-1].text > "5" else 1.0

    engine = make_engine()
    with pytest.raises(VerifierError, match="'late' returned None for node") as caught:
        solve(make_task(), 1, engine=engine, verifier=late)
    found = caught.value.result
    assert found.answer == found.path[-1]
    assert len(found.path) == 2
    assert found.stopped == f"failed: {caught.value}"
    assert engine.handles == 0


def test_an_engine_that_fails_carries_the_best_so_far():
    class Failing(MockEngine):
        async def generate(self, requests, account):
            if account.ledger.nodes:
                raise EngineError("the engine broke")
            return await super().generate(requests, account)

    with pytest.raises(EngineError, match="broke") as caught:
        solve(make_task(), 1, engine=Failing(lambda text, rng: "1\n"))
    assert caught.value.result.path == ["1"]


class Wrong(Strategy):
    async def run(self, search):
        await search.expand([search.root], 2)
        raise KeyError("oops")


def third(event):
    if event.kind == "added" and event.node.id == 2:
        raise KeyError("oops")


@pytest.mark.parametrize("options", [{"strategy": Wrong()}, {"on_event": third}])
def test_any_other_error_carries_the_best_so_far_and_releases_all_handles(options):
    engine = make_engine()
    with pytest.raises(KeyError, match="oops") as caught:
        solve(make_task(), 1, engine=engine, **options)
    assert engine.handles == 0
    assert len(caught.value.result.path) == 1
    assert caught.value.result.stopped == "failed: KeyError: 'oops'"


async def test_a_cancelled_search_has_its_best_so_far():
    async def wait(problem, path):
        began.set()
        await asyncio.sleep(PATIENCE)

    began = asyncio.Event()
    results = []

    async def work():
        try:
            await asolve(make_task(), 1, engine=engine, verifier=verifier(timeout=None)(wait))
        except asyncio.CancelledError as error:
            results.append(error.result)
            raise

    engine = make_engine()
    task = asyncio.ensure_future(work())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert results[0].ledger.nodes == 5
    assert engine.handles == 0


def test_a_result_survives_json():
    result = solve(make_task(), 1, engine=make_engine(), strategy=DFS(threshold=float("-inf")))
    again = Result.model_validate_json(result.model_dump_json())
    assert again.tree.to_json() == result.tree.to_json()
    assert again.path == result.path


@pytest.mark.parametrize("strategy", ["bfs", "best_of_n", "self_consistency"])
def test_a_callback_may_stop_the_search(strategy):
    seen = []

    def on_event(event):
        seen.append(event)
        if len(seen) == stop_at:
            raise BudgetReached("seen enough")

    for stop_at in (1, 2, 9):
        seen.clear()
        result = solve(make_task(), 1, engine=make_engine(), strategy=strategy, on_event=on_event)
        assert result.stopped == "seen enough"
        assert len(seen) == stop_at


@pytest.mark.parametrize("verifier", ["likelihood", verifier(timeout=None)(lambda problem, path: None)])
def test_the_start_and_the_end_of_a_search_are_logged_at_debug_with_its_number(caplog, verifier):
    with caplog.at_level(logging.DEBUG, "rksc_tot"), contextlib.suppress(VerifierError):
        solve(make_task(), 1, engine=make_engine(), verifier=verifier)
    searches = [record for record in caplog.records if record.message.startswith("search ")]
    assert {record.levelno for record in searches} == {logging.DEBUG}
    starts, ends = (record.message for record in searches)
    number = starts.split()[1]
    assert starts.startswith(f"search {number} starts on 1: {{'task': ''")
    assert ends.startswith(f"search {number} ends, ")


def test_importing_does_not_log_or_configure_logging():
    program = (
        "import logging, rksc_tot, rksc_tot.api.solve_many, rksc_tot.cli.commands.app\n"
        "log = logging.getLogger('rksc_tot')\n"
        "assert not log.handlers and not logging.root.handlers and log.level == logging.NOTSET"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_search_on_a_mock_engine_imports_neither_torch_nor_transformers():
    program = (
        "import sys, rksc_tot.api.solve, rksc_tot.api.check.check_task, rksc_tot.engine.mock.engine,"
        " rksc_tot.strategies, rksc_tot.verifiers\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=PATIENCE)


def test_a_problem_with_an_id_is_searched_as_without_it():
    task = make_task()
    plain, named = (solve(task, problem, engine=make_engine()) for problem in ("p", rksc_tot.Problem("p", id=7)))
    assert named.tree == plain.tree
    assert (named.problem, named.answer) == (plain.problem, plain.answer)
