"""``solve``, ``asolve`` and streams: results, and errors with the best result so far."""

import asyncio
import contextlib
import json
import logging
import subprocess
import sys
import threading

import pytest

import rksc_tot
from rksc_tot.api.result import Result
from rksc_tot.api.solve import asolve, astream, solve, stream
from rksc_tot.core.budget import Budget, BudgetReached
from rksc_tot.core.errors import ConfigError, EngineError, TaskError, VerifierError
from rksc_tot.core.task import Question, Reject, Task, function_task
from rksc_tot.engine.base import Sampling
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.strategies import BFS, DFS, Strategy
from rksc_tot.verifiers import Likelihood, verifier
from tests.patience import PATIENCE


def make_task(**options):
    options = {"prompt": lambda problem: "go\n", "is_solution": lambda problem, path: len(path) == 2} | options
    return function_task(**{"max_thoughts": 2} | options)


def make_engine(**options):
    return MockEngine(lambda text, rng: f"{rng.randrange(1000)}\n", **options)


def _raise(error):
    raise error


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


def test_strategies_verifiers_and_tasks_can_be_given_by_name():
    engine = MockEngine(lambda text, rng: "10 - 4 = 6 (left: 5 6 6)\n")
    result = solve("game24", "4 5 6 10", engine=engine, strategy="dfs", verifier="random")
    assert (result.settings["strategy"]["name"], result.settings["verifier"]["name"]) == ("dfs", "random")
    assert result.path == ["10 - 4 = 6 (left: 5 6 6)"]
    for wrong in ({"strategy": "bsf"}, {"verifier": "prm"}):
        with pytest.raises(ConfigError, match="there is no"):
            solve(make_task(), 1, engine=engine, **wrong)


def test_a_strategy_given_by_name_has_the_usual_settings_of_the_task():
    task = make_task(usual={"bfs": {"b": 1, "k": 2}})
    settings = [
        solve(task, 1, engine=make_engine(), strategy=strategy).settings["strategy"] for strategy in ("bfs", BFS(k=3))
    ]
    assert settings == [{"name": "bfs", "b": 1, "k": 2}, {"name": "bfs", "b": BFS().b, "k": 3}]
    for wrong, error in (({"bfs": {"width": 1}}, ConfigError), ({"bfs": 7}, TaskError), (None, TaskError)):
        with pytest.raises(error):
            solve(make_task(usual=wrong), 1, engine=make_engine())


@pytest.mark.parametrize(
    ("question", "verifier"),
    [
        (lambda problem, path: None, "likelihood"),
        (lambda problem, path: Question("?", {"1": 1, "2": 2}), "lm_value"),
        (lambda problem, path: Question(f"{path[-1].text}?", {"1": 1, "2": 2}), "lm_value"),
    ],
)
def test_the_default_verifier_is_lm_value_if_the_task_has_a_question(question, verifier):
    result = solve(make_task(question=question), 1, engine=make_engine())
    assert result.settings["verifier"]["name"] == verifier


def drawn_with(**options):
    """The sampling in the result's settings and that of the engine's requests."""
    asked, engine = [], make_engine()
    generate = engine.generate

    async def generate_and_note(requests, account):
        asked.extend(request.sampling for request in requests)
        return await generate(requests, account)

    engine.generate = generate_and_note
    result = solve(make_task(temperature=0.9, top_p=0.8), 1, engine=engine, **options)
    [sampling] = set(asked)
    return result.settings["sampling"], sampling


@pytest.mark.parametrize(("given", "used"), [
    (None, Sampling(temperature=0.9, top_p=0.8)),
    (Sampling(temperature=0.5), Sampling(temperature=0.5, top_p=0.8)),
    (Sampling(top_p=1.0, top_k=7, min_p=0.1), Sampling(temperature=0.9, top_k=7, min_p=0.1)),
])  # fmt: skip
def test_given_sampling_settings_replace_the_tasks_and_are_recorded(given, used):
    recorded, drawn = drawn_with(sampling=given)
    assert drawn == used
    assert recorded == {**used.model_dump(), "mode": "sample"}


def test_a_strategy_keeps_its_own_temperature_and_uses_the_other_filters():
    _, drawn = drawn_with(strategy="cot", sampling=Sampling(temperature=0.5, top_k=7))
    assert drawn == Sampling(temperature=0, top_k=7, top_p=0.8)


def test_sampling_out_of_range_or_of_another_type_is_refused():
    with pytest.raises(ConfigError, match=r"^sampling: top_p: should be .* not 2"):
        Sampling(top_p=2)
    with pytest.raises(ConfigError, match=r"the sampling is 0\.7, not of type Sampling"):
        solve(make_task(), 1, engine=make_engine(), sampling=0.7)


def test_results_record_the_settings_of_a_verifier():
    said = [
        solve(make_task(), 1, engine=make_engine(), verifier=Likelihood(of=of)).settings for of in ("thought", "path")
    ]
    assert [each["verifier"] for each in said] == [{"name": "likelihood", "of": of} for of in ("thought", "path")]


def test_a_function_verifier_is_named_by_its_module():
    @verifier(attempts=2)
    def near(problem, path):
        return 1

    told = solve(make_task(), 1, engine=make_engine(), verifier=near).settings["verifier"]
    assert (told["name"], told["attempts"]) == ("near", 2)
    assert told["function"].endswith("<locals>.near")
    json.dumps(told, allow_nan=False)


@pytest.mark.parametrize("front", [solve, asolve, stream, astream])
def test_a_missing_engine_is_named_with_the_function_that_was_called(front):
    with pytest.raises(TypeError, match=rf"^{front.__name__}\(\) missing .* 'engine'$"):
        front(make_task(), 1)


@pytest.mark.parametrize("front", [solve, stream, astream])
@pytest.mark.parametrize("wrong", ["sede", "concurrency"])
def test_a_misspelt_option_is_refused_by_the_function_that_was_called(front, wrong):
    with pytest.raises(
        ConfigError, match=rf"^{front.__name__} has no option '{wrong}' - there are strategy, verifier, "
    ):
        front(make_task(), 1, engine=make_engine(), **{wrong: 1})


def _broken(*args):
    return {}["oops"]


@pytest.mark.parametrize(
    ("broken", "options"),
    [
        ({"validate": _broken}, {}),
        ({"prompt": _broken}, {}),
        ({"parse": _broken}, {}),
        ({"is_solution": _broken}, {}),
        ({"state_key": _broken}, {}),
        ({"state_key": lambda problem, path: _broken() if path else None}, {}),
        ({"answer": _broken}, {}),
        ({"question": _broken}, {}),
        ({"question": _broken}, {"verifier": "lm_value"}),
        ({"mode": "propose", "propose_prompt": _broken}, {}),
        ({"mode": "propose", "split": _broken}, {}),
        ({}, {"verifier": verifier(_broken)}),
        ({}, {"verifier": verifier(timeout=None)(_broken)}),
    ],
)
def test_an_error_of_user_code_is_the_cause_of_the_raised_error(broken, options):
    with pytest.raises((TaskError, VerifierError)) as caught:
        solve(make_task(**broken), 1, engine=make_engine(), **options)
    error = caught.value
    assert isinstance(error.__cause__, KeyError)
    assert error.__cause__.__traceback__ is not None
    while error is not None:
        assert not isinstance(error, RuntimeError)
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    ("broken", "options"),
    [
        ({"is_solution": lambda problem, path: _broken() if len(path) == 2 else False}, {}),
        ({"state_key": lambda problem, path: _broken() if len(path) == 2 else None}, {}),
        (
            {"answer": lambda problem, path: _broken() if int(path[0].text) % 2 else "1"},
            {"strategy": "self_consistency"},
        ),
        ({}, {"verifier": verifier(lambda problem, path: _broken() if len(path) == 2 else 1)}),
    ],
)
def test_user_code_that_fails_on_some_thoughts_only_is_one_warning(broken, options, caplog):
    with caplog.at_level(logging.WARNING, "rksc_tot"):
        solve(make_task(**broken), 1, engine=make_engine(), **options)
    [record] = caplog.records
    assert "raised KeyError: 'oops'" in record.message


@pytest.mark.parametrize("correct", ["no", 1, []])
def test_a_check_that_does_not_say_true_or_false_is_reported_as_not_checked(correct, caplog):
    with caplog.at_level(logging.WARNING, "rksc_tot"):
        assert solve(make_task(check=lambda problem, answer: correct), 1, engine=make_engine()).correct is None
    assert f"check returned {correct!r}, not True, False or None" in caplog.text


def test_the_result_names_the_problem_as_it_was_given():
    task = make_task(validate=lambda problem: tuple(map(int, problem)))
    assert [solve(task, given, engine=make_engine()).problem for given in ("12", ["1", "2"])] == ["12", "(1, 2)"]


@pytest.mark.parametrize("correct", [True, False, None])
def test_the_tasks_check_is_reported_and_never_used_by_the_search(correct):
    assert solve(make_task(check=lambda problem, answer: correct), 1, engine=make_engine()).correct is correct


def test_a_check_that_raises_is_reported_as_not_checked(caplog):
    with caplog.at_level(logging.WARNING, "rksc_tot"):
        result = solve(make_task(check=lambda problem, answer: 1 / 0), 1, engine=make_engine())
    assert result.correct is None
    assert "check raised ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"validate": lambda problem: _raise(TaskError("'x' is no number", hint="write 3"))},
            "'x' is no number - write 3",
        ),
        ({"validate": int}, "'x' does not fit the task: ValueError"),
        ({"prompt": lambda problem: problem.y}, "prompt raised AttributeError.* for 'x'"),
    ],
)
def test_a_refused_problem_is_a_task_error_with_its_value(options, message):
    engine = make_engine()
    with pytest.raises(TaskError, match=message):
        solve(make_task(**options), "x", engine=engine)
    assert engine.handles == 0


def test_a_task_without_a_prompt_is_an_error_that_says_so():
    from rksc_tot.core.task import Task

    with pytest.raises(TaskError, match="prompt is missing for 'x'"):
        solve(Task(), "x", engine=make_engine())


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


FAILING = [
    ({"parse": lambda *args: 1 / 0}, "parse raised ZeroDivisionError"),
    ({"parse": lambda *args: None}, "parse returned None"),
    ({"parse": lambda *args: _raise(SystemExit(0))}, "parse raised SystemExit"),
    ({"state_key": lambda problem, path: [] if path else None}, "state_key raised TypeError"),
    ({"is_solution": lambda problem, path: bool(path) and 1 / 0}, "is_solution raised ZeroDivisionError"),
    ({"answer": lambda *args: 1 / 0}, "answer raised ZeroDivisionError"),
    ({"mode": "propose", "split": lambda *args: 1 / 0}, "split raised ZeroDivisionError"),
    ({"mode": "propose", "propose_prompt": lambda *args: 1 / 0}, "propose_prompt raised ZeroDivisionError"),
]


@pytest.mark.parametrize("strategy", ["bfs", "dfs", "cot", "self_consistency"])
@pytest.mark.parametrize(("options", "words"), FAILING)
def test_a_task_that_fails_on_every_thought_is_an_error(options, words, strategy):
    engine = make_engine()
    with pytest.raises(TaskError, match=f"the task failed on every thought or answer: {words}") as caught:
        solve(make_task(**options), 1, engine=engine, strategy=strategy)
    assert caught.value.result.answer is None
    assert engine.handles == 0


@pytest.mark.parametrize(
    "options",
    [{"parse": lambda *args: _raise(Reject("not nice"))}, {"max_thought_tokens": 1, "prompt": lambda problem: "x"}],
)
def test_if_every_thought_is_rejected_result_and_log_say_why(options, caplog):
    engine = MockEngine(lambda text, rng: f"1{rng.randrange(10)}\n")
    with caplog.at_level(logging.WARNING, "rksc_tot"):
        result = solve(make_task(**options), 1, engine=engine, strategy=BFS(k=4))
    [(reason, times)] = result.rejections.items()
    assert (times, result.stopped) == (4, "finished")
    assert f"all 4 thoughts were rejected because: {reason}" in caplog.text


def test_a_result_has_the_commonest_reasons_first():
    task = make_task(parse=lambda problem, path, text: _raise(Reject(f"{len(text)} digits")))
    engine = MockEngine(lambda text, rng: "1" * (1 + int(rng.random() ** 2 * 20)) + "\n")
    counts = list(solve(task, 1, engine=engine, strategy=BFS(k=200)).rejections.values())
    assert len(counts) == 10
    assert counts == sorted(counts, reverse=True)


def plain(problem, path):
    return 1.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"verifier": plain}, "put @verifier above the function"),
        ({"verifier": Likelihood}, r"give an object, such as Likelihood\(\)"),
        ({"strategy": BFS}, r"give an object, such as BFS\(\)"),
        ({"strategy": 5}, "the strategy is 5, not of type Strategy"),
        ({"budget": {"tokens": 5}}, "not of type Budget - such as Budget"),
        ({"engine": "x"}, "the engine is 'x', not of type Engine - load_engine"),
    ],
)
def test_an_argument_of_the_wrong_type_is_refused_with_a_hint(options, words):
    with pytest.raises(ConfigError, match=words):
        solve(make_task(), 1, **{"engine": make_engine()} | options)


@pytest.mark.parametrize("task", [None, Task])
def test_a_value_that_is_not_a_task_is_refused(task):
    with pytest.raises(ConfigError, match="not of type Task"):
        solve(task, 1, engine=make_engine())


@pytest.mark.parametrize(
    "values",
    [{"tokens": 0}, {"nodes": -1}, {"seconds": 0}, {"seconds": float("inf")}, {"seconds": float("nan")}, {"tkens": 3}],
)
def test_a_wrong_budget_is_refused_in_one_line_that_names_it(values):
    with pytest.raises(ConfigError, match=rf"^budget: .*{next(iter(values))}[^\n]*$"):
        Budget(**values)


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


@pytest.mark.parametrize("mode", ["sample", "propose"])
def test_a_model_that_ends_its_text_at_once_is_the_reported_reason(mode, caplog):
    class Ended(MockEngine):
        async def generate(self, requests, account):
            replies = await super().generate(requests, account)
            return [[completion._replace(text="", finish="eos") for completion in reply] for reply in replies]

    engine = Ended(lambda text, rng: "1\n")
    with caplog.at_level(logging.WARNING, "rksc_tot"):
        result = solve(make_task(mode=mode), 1, engine=engine)
    assert list(result.rejections) == ["the model ended its text here"]
    assert "rejected because: the model ended its text here" in caplog.text
    assert engine.handles == 0


# -- the log ---------------------------------------------------------------------------------------------------------------


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


# -- streams ---------------------------------------------------------------------------------------------------------------


def shape(events):
    return [(event.kind, event.model_dump(mode="json", exclude={"node"})) for event in events]


async def test_streams_yield_what_callbacks_see_and_end_with_the_result():
    seen = []
    result = await asolve(make_task(), 1, engine=make_engine(), on_event=seen.append)
    plain, other = stream(make_task(), 1, engine=make_engine()), astream(make_task(), 1, engine=make_engine())
    assert shape(list(plain)) == shape([event async for event in other]) == shape(seen)
    assert plain.result.tree.to_json() == other.result.tree.to_json() == result.tree.to_json()
    assert plain.result.answer == result.answer


def test_the_tree_does_not_change_while_a_loop_handles_an_event():
    engine = make_engine()
    run = iter(stream(make_task(), 1, engine=engine, strategy=BFS(b=1, k=1)))
    assert next(run).node.depth == 0
    depths = [event.node.depth for event in run if event.kind == "added"]
    assert depths == [1, 2]


def test_a_stream_has_no_result_before_its_end():
    run = stream(make_task(), 1, engine=make_engine())
    with pytest.raises(ConfigError, match="to the end"):
        _ = run.result


@pytest.mark.parametrize("strategy", ["bfs", "best_of_n", "self_consistency"])
@pytest.mark.parametrize("after", [1, 2, 5])
def test_leaving_a_stream_stops_the_search_with_the_best_so_far(after, strategy):
    engine = make_engine()
    task = make_task(max_thoughts=500, is_solution=lambda problem, path: False)
    run = stream(task, 1, engine=engine, strategy=strategy)
    for count, _ in enumerate(run, start=1):
        if count == after:
            break
    assert engine.handles == 0
    assert run.result.stopped == "cancelled"
    assert run.result.ledger.nodes < 20
    assert not [thread for thread in threading.enumerate() if thread.name == "rksc_tot.stream"]


async def test_leaving_an_async_stream_cancels_the_search_and_keeps_the_best_so_far():
    @verifier(timeout=None)
    async def wait(problem, path):
        await asyncio.sleep(PATIENCE)

    engine = make_engine()
    run = astream(make_task(), 1, engine=engine, verifier=wait)
    events = aiter(run)
    for _ in range(3):
        await anext(events)
    await events.aclose()
    assert engine.handles == 0
    assert len(run.result.path) == 1
    assert run.result.stopped == "cancelled"


async def test_a_closed_async_stream_has_the_best_so_far():
    engine = make_engine()
    run = astream(make_task(), 1, engine=engine)
    async for event in run:
        if event.kind == "added" and event.node.depth == 1:
            break
    for _ in range(2):
        await run.aclose()
    assert engine.handles == 0
    assert len(run.result.path) >= 1


async def test_streams_raise_the_error_of_the_search():
    bad = {"engine": make_engine(), "verifier": verifier(timeout=None)(lambda problem, path: None)}
    with pytest.raises(VerifierError):
        list(stream(make_task(), 1, **bad))
    with pytest.raises(VerifierError):
        _ = [event async for event in astream(make_task(), 1, **bad)]


def test_a_search_on_a_mock_engine_imports_neither_torch_nor_transformers():
    program = (
        "import sys, rksc_tot.api.solve, rksc_tot.api.check.check_task, rksc_tot.engine.mock.engine,"
        " rksc_tot.strategies, rksc_tot.verifiers\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=PATIENCE)
