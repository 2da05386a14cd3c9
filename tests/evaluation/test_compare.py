"""``compare``: contenders of one's own, on rows and on other problems."""

import pytest

from rksc_tot import Budget, MockEngine, Problem, Sampling, compare
from rksc_tot.core.errors import ConfigError, MissingExtra
from rksc_tot.core.task import Thought, function_task
from rksc_tot.evaluation.compare import ComparedRows
from rksc_tot.evaluation.contenders import Contender
from rksc_tot.strategies import Beam
from rksc_tot.tasks.rows.task import rows_task

ROWS = [{"q": "4 + 5?", "answer": "9"}, {"q": "4 * 5?", "answer": "20", "id": "b"}]


def engine():
    return MockEngine(lambda text, rng: " 9.\n" if text.endswith("is") else "4 and 5.\n")


@pytest.fixture
def task():
    return rows_task(ROWS, prompt="{q}\n", max_thoughts=2)


def test_a_contender_is_a_name_a_strategy_a_dict_or_a_contender(task):
    contenders = [
        "cot",
        Beam(b=1),
        {
            "strategy": "beam",
            "settings": {"b": 2},
            "verifier": {"name": "likelihood", "of": "path"},
            "sampling": {"top_k": 3},
        },
        Contender("mine", "", "cot", budget=Budget(tokens=1), sampling=Sampling(temperature=0.5)),
    ]
    seen = []

    def note(label, outcome):
        seen.append((label, outcome.id))

    rows = compare(task, contenders=contenders, engine=engine(), on_outcome=note)
    assert [row.strategy for row in rows][0::2] == ["cot", "beam b=2"]
    assert [(row.solved, row.n) for row in rows] == [(1, 2), (1, 2), (1, 2), (0, 2)]
    assert rows[1].settings["strategy"]["b"] == 1
    assert (rows[2].settings["verifier"]["of"], rows[2].settings["sampling"]["top_k"]) == ("path", 3)
    assert rows[3].settings["budget"] == {"tokens": 1}
    assert seen[:2] == [("cot", 1), ("cot", "b")]


def test_each_contender_has_an_engine_of_its_own_or_all_share_one(task):
    opened = []
    compare(task, contenders=["cot", "dfs"], engine=lambda: opened.append(engine()) or opened[-1])
    assert [each._closed for each in opened] == [True, True]
    shared = engine()
    compare(task, ROWS[:1], ["cot", "dfs"], engine=shared)
    assert not shared._closed


def test_without_contenders_every_strategy_is_one(task):
    labels = [row.strategy for row in compare(task, [Problem(ROWS[0], "x")], engine=engine())]
    assert {"cot", "beam", "bfs", "dfs", "best_of_n", "self_consistency"} <= set(labels)


@pytest.mark.parametrize(
    ("problems", "contenders", "words"),
    [
        (None, [], "there are no contenders"),
        (None, ["cot", "cot"], "two contenders have the label 'cot'"),
        (None, [{"settings": {}}], "name its strategy"),
        (
            None,
            [{"strategy": "cot", "sampler": {}}],
            "a contender has no 'sampler' - did you mean 'sampling'.* there are label, strategy",
        ),
        (None, [{"strategy": "beam", "settings": {"width": 2}}], "no setting 'width'"),
        (None, [{"strategy": "cot", "verifier": "x"}], "there is no verifier 'x'"),
        (None, [{"strategy": "cot", "budget": {"tokens": -1}}], "tokens"),
        ("4 + 5?", ["cot"], "the problems are '4 \\+ 5\\?' - give a list"),
        ([ROWS[0], dict(ROWS[0])], ["cot"], "is the same problem as"),
    ],
)
def test_invalid_arguments_are_refused(task, problems, contenders, words):
    with pytest.raises(ConfigError, match=words):
        compare(task, problems, contenders, engine=engine())


def test_a_task_without_rows_needs_problems():
    with pytest.raises(ConfigError, match="there are no problems"):
        compare("game24", engine=engine())


def test_rows_become_a_dataframe_if_pandas_is_installed(task, monkeypatch):
    rows = compare(task, contenders=["cot"], engine=engine())
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"pip install rksc-tot\[pandas\]"):
        rows.to_dataframe()

    class Frames:
        @staticmethod
        def DataFrame(records, columns):
            return [[record[column] for column in columns] for record in records]

    monkeypatch.setitem(__import__("sys").modules, "pandas", Frames)
    assert ComparedRows(rows).to_dataframe()[0][:3] == ["cot", 1, 2]


def test_a_task_that_changes_its_problems_does_not_change_them_for_another_search():
    seen = []

    def note(problem):
        seen.append(problem["numbers"][0])
        problem["numbers"].append(len(problem["numbers"]))
        problem["numbers"][0] += 1
        return problem["numbers"][0]

    task = function_task(
        validate=lambda problem: problem if note(problem) else None,
        prompt=lambda problem: f"{note(problem)}\n",
        parse=lambda problem, path, text: Thought(f"{note(problem)}{text}"),
        observe=lambda problem, path: str(note(problem)),
        is_solution=lambda problem, path: len(path) == 2,
        answer=lambda problem, path: str(len(problem["numbers"])),
    )
    problem = {"numbers": [1, 2], "inside": ({"more": []},)}
    outcomes = []
    compare(
        task, [problem], ["cot", {"strategy": "cot", "label": "again"}],
        engine=MockEngine(lambda text, rng: "x\n"), on_outcome=lambda label, outcome: outcomes.append(outcome),
    )  # fmt: skip
    assert problem == {"numbers": [1, 2], "inside": ({"more": []},)}
    assert [outcome.problem for outcome in outcomes] == [problem] * 2
    assert len({(outcome.result.problem, outcome.result.answer, str(outcome.result.path)) for outcome in outcomes}) == 1
    assert outcomes[0].result.problem == "{'numbers': [2, 2, 2], 'inside': ({'more': []},)}"
