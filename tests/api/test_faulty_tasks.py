"""A task or verifier that fails: the error or warning, and the result so far."""

import logging

import pytest

from rksc_tot.api.solve import solve
from rksc_tot.core.errors import TaskError, VerifierError
from rksc_tot.core.task import Reject, Task
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.strategies import BFS
from rksc_tot.verifiers import verifier
from tests.api.small_task import make_engine, make_task


def _raise(error):
    raise error


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

    with pytest.raises(TaskError, match="prompt is missing for 'x'"):
        solve(Task(), "x", engine=make_engine())


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
