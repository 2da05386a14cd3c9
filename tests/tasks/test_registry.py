from importlib.metadata import EntryPoint

import pytest

from rksc_tot import registry
from rksc_tot.errors import ConfigError
from rksc_tot.task import Task
from rksc_tot.tasks import TASKS, load_task


@pytest.mark.parametrize("name", TASKS.names())
def test_every_registered_task_loads_and_says_what_it_is(name):
    assert isinstance(load_task(name), Task)
    assert TASKS.summary(name)


def test_an_unknown_task_is_refused_with_the_names_there_are():
    with pytest.raises(ConfigError, match=r"no task 'chess' - there are .*game24"):
        load_task("chess")


@pytest.mark.parametrize(
    ("value", "says"),
    [("no_such_module:Task", "cannot be imported"), ("builtins:dict", "is dict, not a Task")],
)
def test_a_broken_plug_in_is_one_sentence_and_hides_no_other_task(monkeypatch, value, says):
    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint("broken", value, group)])
    with pytest.raises(ConfigError, match=says):
        load_task("broken")
    assert load_task("game24").name == "game24"


def test_an_installed_package_adds_a_task(monkeypatch):
    point = EntryPoint("mine", "rksc_tot.tasks.game24:whole_chains", TASKS.group)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    assert "mine" in TASKS.names()
    assert load_task("mine").prompt((1, 2, 3, 4)).startswith("solve")
