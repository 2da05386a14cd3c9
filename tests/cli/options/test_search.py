"""Options of searches."""

import pytest

from rksc_tot.cli.options.search import SearchOptions
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.task import Task, Thinking


def test_without_the_option_the_task_says_whether_the_model_thinks():
    task = Task()
    assert SearchOptions().adapted(task) is task


def test_the_option_sets_the_budget_and_leaves_the_task_as_it_was():
    task = Task()
    task.thinking = Thinking(budget=8, keep=True, thought="whole", markers=("<a>", "</a>"))
    adapted = SearchOptions(thinking=64).adapted(task)
    assert adapted.thinking == Thinking(budget=64, keep=True, thought="whole", markers=("<a>", "</a>"))
    assert task.thinking.budget == 8
    assert SearchOptions(thinking=64).adapted(Task()).thinking == Thinking(budget=64)


def test_a_budget_below_one_is_refused():
    with pytest.raises(ConfigError, match="greater than or equal to 1, not 0"):
        SearchOptions(thinking=0).adapted(Task())
