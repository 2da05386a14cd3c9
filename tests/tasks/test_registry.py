from importlib.metadata import EntryPoint

import pytest

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins import registry
from rksc_tot.core.task import Task
from rksc_tot.strategies import BFS, STRATEGIES
from rksc_tot.tasks import TASKS, load_task


@pytest.mark.parametrize("name", TASKS.names())
def test_every_registered_task_loads_and_has_a_summary(name):
    assert isinstance(load_task(name), Task)
    assert TASKS.summary(name)


def test_an_unknown_task_is_refused_with_the_known_names():
    with pytest.raises(ConfigError, match=r"no task 'chess' - there are .*game24"):
        load_task("chess")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("no_such_module:Task", "cannot be imported"),
        ("plug_in_that_exits:Task", "cannot be imported: SystemExit: 0"),
        ("builtins:dict", "is dict, not a Task"),
        ("math:pi", "is float, not a Task"),
        ("math:sqrt", "cannot be made: TypeError"),
        ("sys:exit", "cannot be made: SystemExit"),
        ("os:getcwdb", "is bytes, not a Task"),
    ],
)
def test_a_broken_plug_in_is_one_sentence_and_other_tasks_load(monkeypatch, tmp_path, value, says):
    (tmp_path / "plug_in_that_exits.py").write_text("raise SystemExit(0)", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint("broken", value, group)])
    for use in (load_task, TASKS.summary):
        with pytest.raises(ConfigError, match=says):
            use("broken")
    assert load_task("game24").name == "game24"


@pytest.mark.parametrize("name", ["rksc_tot.tasks.game24.task:whole_chains", "rksc_tot.tasks.game24.task:Game24"])
def test_any_task_that_can_be_imported_is_named_as_module_and_attribute(name):
    assert load_task(name).name == "game24"


@pytest.mark.parametrize("name", ["", ":", "a:", ":b", "a:b:c", "a b:c", "a"])
def test_a_malformed_module_and_attribute_gets_a_hint(name):
    with pytest.raises(ConfigError, match=r"there is no task .*module:attribute"):
        load_task(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("math:pi", "is float, not a Task - correct math:pi in its module"),
        ("math:sqrt", "cannot be made: TypeError"),
        ("math:no", "check module and attribute"),
        ("no_such_module:Task", "check module and attribute"),
    ],
)
def test_an_error_of_a_named_attribute_does_not_mention_entry_points(name, says):
    with pytest.raises(ConfigError, match=says) as caught:
        load_task(name)
    assert "entry point" not in str(caught.value)


@pytest.fixture
def ready_made(monkeypatch):
    """A strategy that is announced as an object, not as a class."""
    monkeypatch.setattr(EntryPoint, "load", lambda self: BFS(b=2, k=2))
    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint("mine", "some:where", group)])


def test_settings_of_an_object_are_validated_like_those_of_a_class(ready_made):
    assert STRATEGIES.make("mine", k=3) == BFS(b=2, k=3)
    for options in ({"k": -5}, {"nonsense": 7}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            STRATEGIES.make("mine", **options)


@pytest.mark.parametrize("setting", ["q", "name", "kind"])
def test_an_unknown_setting_is_refused_with_the_known_settings(setting):
    with pytest.raises(ConfigError, match=f"no setting '{setting}' - its settings are b, k"):
        STRATEGIES.make("bfs", **{setting: 5})


def test_a_task_object_takes_no_settings(monkeypatch):
    monkeypatch.setattr(EntryPoint, "load", lambda self: Task())
    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint("mine", "some:where", group)])
    with pytest.raises(ConfigError, match="Task takes no settings - leave out k"):
        TASKS.make("mine", k=1)


def test_an_installed_package_adds_a_task(monkeypatch):
    point = EntryPoint("mine", "rksc_tot.tasks.game24.task:whole_chains", TASKS.group)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    assert "mine" in TASKS.names()
    assert load_task("mine").prompt((1, 2, 3, 4)).startswith("solve")
