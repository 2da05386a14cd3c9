"""The names, settings and sampling of a search, and invalid ones that are refused."""

import json

import pytest

from rksc_tot.api.solve import asolve, astream, solve, stream
from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError, TaskError
from rksc_tot.core.task import Question, Task
from rksc_tot.engine.base import Sampling
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.strategies import BFS, Strategy
from rksc_tot.verifiers import Likelihood, verifier
from tests.api.small_task import make_engine, make_task


def test_strategies_verifiers_and_tasks_can_be_given_by_name():
    engine = MockEngine(lambda text, rng: "10 - 4 = 6 (left: 5 6 6)\n")
    result = solve("game24", "4 5 6 10", engine=engine, strategy="dfs", verifier="random")
    assert (result.settings["strategy"]["name"], result.settings["verifier"]["name"]) == ("dfs", "random")
    assert result.path == ["10 - 4 = 6 (left: 5 6 6)"]
    for wrong in ({"strategy": "bsf"}, {"verifier": "prmm"}):
        with pytest.raises(ConfigError, match="there is no"):
            solve(make_task(), 1, engine=engine, **wrong)


def test_a_strategy_given_by_name_has_the_strategy_settings_of_of_the_task():
    task = make_task(strategy_settings={"bfs": {"b": 1, "k": 2}})
    settings = [
        solve(task, 1, engine=make_engine(), strategy=strategy).settings["strategy"] for strategy in ("bfs", BFS(k=3))
    ]
    assert settings == [{"name": "bfs", "b": 1, "k": 2}, {"name": "bfs", "b": BFS().b, "k": 3}]
    for wrong, error in (({"bfs": {"width": 1}}, ConfigError), ({"bfs": 7}, TaskError), (None, TaskError)):
        with pytest.raises(error):
            solve(make_task(strategy_settings=wrong), 1, engine=make_engine())


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
        ConfigError,
        match=rf"^{front.__name__} has no option '{wrong}' - (did you mean 'seed'\? )?there are strategy, verifier, ",
    ):
        front(make_task(), 1, engine=make_engine(), **{wrong: 1})


def plain(problem, path):
    return 1.0


class NotAsync(Strategy):
    def run(self, search):
        pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"verifier": plain}, "put @verifier above the function"),
        ({"verifier": Likelihood}, r"give an object, such as Likelihood\(\)"),
        ({"strategy": BFS}, r"give an object, such as BFS\(\)"),
        ({"strategy": 5}, "the strategy is 5, not of type Strategy - give an object of a class derived from"),
        ({"strategy": NotAsync()}, "NotAsync.run is not async - write: async def run"),
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
