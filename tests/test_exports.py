import subprocess
import sys
from importlib import metadata

import pytest

import rksc_tot

PUBLIC = {
    "Budget", "CacheError", "Calibration", "ConfigError", "Constraint", "ConstraintError", "ContextOverflow", "EngineError",
    "Ledger",
    "MissingExtra", "MockEngine", "ModelLoadError", "Node", "Outcome", "Path", "Problem", "Question", "RKSC",
    "ReasoningTree", "Reject", "Result", "RkscTotError", "Sampling", "SharedKVBudget",
    "Strategy", "Task", "TaskError", "Thinking", "Thought",
    "UnsupportedModel", "Verifier", "VerifierError", "asolve", "asolve_many", "astream", "calibrate", "check_task", "compare",
    "engine_from", "function_task", "grammar", "json_schema", "load_engine", "prm", "read_results", "regex", "rows_task", "solve",
    "solve_many", "stream", "verifier",
}  # fmt: skip


def in_a_fresh_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_the_public_names_are_exactly_these():
    assert set(rksc_tot.__all__) == {*PUBLIC, "__version__"}
    assert set(dir(rksc_tot)) == set(rksc_tot.__all__)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_exists_and_is_documented(name):
    value = getattr(rksc_tot, name)
    assert value.__doc__
    assert value.__name__ == name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rksc_tot.nothing


def test_importing_loads_nothing_heavy():
    assert (
        in_a_fresh_python(
            "import sys, rksc_tot; print(*{m.partition('.')[0] for m in sys.modules} "
            "& {'torch', 'transformers', 'networkx', 'pydantic', 'rich', 'typer', 'numpy'})"
        )
        == []
    )


def test_neither_the_package_nor_the_command_loads_torch_before_use():
    modules = ["api.solve", "views.terminal", "tasks.game24.task", "cli", "evaluation"]
    loaded = in_a_fresh_python(f"""
import importlib, sys
for module in {modules}:
    importlib.import_module("rksc_tot." + module)
    print(*(f"{{module}} loads {{name}}" for name in ("torch", "transformers") if name in sys.modules))
""")
    assert loaded == []


@pytest.mark.parametrize(
    "first", ["from rksc_tot import solve", "import rksc_tot.api.solve", "from rksc_tot.api.solve import solve"]
)
def test_solve_is_the_function_whatever_was_imported_first(first):
    assert in_a_fresh_python(f"{first}\nfrom rksc_tot import solve\nprint(callable(solve))") == ["True"]


def test_the_version_is_that_of_the_installed_package():
    assert rksc_tot.__version__ == metadata.version("rksc_tot")
