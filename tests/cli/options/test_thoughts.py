"""Options of how thoughts are written."""

import pytest

from rksc_tot.cli.options.thoughts import ThoughtOptions, read_constraint
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.task import Task, Thinking
from rksc_tot.core.task.constraint import grammar, json_schema, regex


def test_without_the_option_the_task_says_whether_the_model_thinks():
    task = Task()
    assert ThoughtOptions().adapted(task) is task


def test_the_option_sets_the_budget_and_leaves_the_task_as_it_was():
    task = Task()
    task.thinking = Thinking(budget=8, keep=True, thought="whole", markers=("<a>", "</a>"))
    adapted = ThoughtOptions(thinking=64).adapted(task)
    assert adapted.thinking == Thinking(budget=64, keep=True, thought="whole", markers=("<a>", "</a>"))
    assert task.thinking.budget == 8
    assert ThoughtOptions(thinking=64).adapted(Task()).thinking == Thinking(budget=64)


def test_a_budget_below_one_is_refused():
    with pytest.raises(ConfigError, match="greater than or equal to 1, not 0"):
        ThoughtOptions(thinking=0).adapted(Task())


def test_a_constraint_is_written_in_the_option_or_in_a_file(tmp_path):
    assert read_constraint(r"regex:a:\d+") == regex(r"a:\d+")
    for kind, source, expected in (
        ("json_schema", '{"type": "integer"}', json_schema({"type": "integer"})),
        ("grammar", 'start: "a"', grammar('start: "a"')),
    ):
        (tmp_path / kind).write_text(source, encoding="utf-8")
        assert read_constraint(f"{kind}:{tmp_path / kind}") == expected
