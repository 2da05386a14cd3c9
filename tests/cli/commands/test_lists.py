"""``rksc-tot tasks``, ``strategies``, ``verifiers`` and ``policies`` list each plug-in with its settings."""

from importlib.metadata import EntryPoint

import pytest

from rksc_tot.core.plugins import registry
from rksc_tot.evaluation import choose_contenders
from rksc_tot.policies.compression.registry import COMPRESSION_POLICIES
from rksc_tot.strategies import STRATEGIES
from rksc_tot.tasks import TASKS
from rksc_tot.verifiers import VERIFIERS, verifier
from tests.cli.commands.one_command import run

pytestmark = pytest.mark.usefixtures("played")


@verifier
def near(problem, path):
    """How near the last thought is.

    And more.
    """
    return 0.0


def test_a_broken_plug_in_is_listed_with_its_error_beside_the_others(monkeypatch):
    points = [
        EntryPoint("exits", "sys:exit", "g"),
        EntryPoint("number", "math:pi", "g"),
        EntryPoint("gone", "no:such", "g"),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    lines = dict(line.split(maxsplit=1) for line in run("tasks").stdout.splitlines())
    assert all(lines.pop(point.name).startswith("(task ") for point in points)
    assert lines
    assert not any(line.startswith("(") for line in lines.values())


@pytest.mark.parametrize(
    ("command", "names"),
    [("tasks", TASKS), ("strategies", STRATEGIES), ("verifiers", VERIFIERS), ("policies", COMPRESSION_POLICIES)],
    ids=lambda x: str(x)[:9],
)
def test_lists_name_everything_with_a_line_each(command, names):
    lines = [line for line in run(command).stdout.splitlines() if not line.startswith(" ")]
    found = [line.split(maxsplit=1)[0] for line in lines]
    assert found == [*names.names(), *(["gym:NAME"] if command == "tasks" else [])]
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)


def test_every_setting_that_can_be_set_is_listed_with_its_default_and_range():
    said = run("strategies").stdout
    for name in STRATEGIES.names():
        for setting, default in STRATEGIES.make(name).model_dump().items():
            assert f"{setting}={default!r}  " in said
    said = run("policies").stdout
    for name in COMPRESSION_POLICIES.names():
        for setting in {*type(COMPRESSION_POLICIES.make(name)).model_fields} - {"seed"}:
            assert f" {setting}=" in said
    assert "theta=[1.0,0.0,1.0]  list of 3: weights of search value, boundary entropy and attention\n" in said
    assert "fit=None  file: output of `rksc-tot fit arborkv`" in said
    said = run("strategies").stdout
    assert "k=5  whole number, at least 1, at most 1000000: thoughts generated after each state" in said
    assert "reduce='mean'  mean or sum" in said
    assert "bfs: b=5, k=32" in run("tasks").stdout
    assert "longest=400" in run("verifiers").stdout


def test_a_verifier_made_of_a_function_is_listed_by_what_the_function_says(monkeypatch):
    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint("mine", f"{__name__}:near", group)])
    said = run("verifiers").stdout
    assert "mine        How near the last thought is.\n" in said
    assert "0x" not in said


def test_every_row_of_a_comparison_can_be_chosen_by_the_label_it_is_listed_with():
    for task in ("game24", "game24-chain"):
        labels = run("compare", task, "--list").stdout.splitlines()
        assert labels == [contender.label for contender in choose_contenders(task)]
