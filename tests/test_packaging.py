import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
HOMES = {"strategies": "rksc_tot.strategies", "verifiers": "rksc_tot.verifiers"}


def requirements():
    project = PROJECT["project"]
    return [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]


def test_every_folder_with_code_is_a_package_of_the_wheel():
    folders = {file.parent.relative_to(ROOT) for top in ("rksc_tot", *HOMES) for file in (ROOT / top).rglob("*.py")}
    names = {".".join((HOMES.get(folder.parts[0], folder.parts[0]), *folder.parts[1:])) for folder in folders}
    assert names == set(PROJECT["tool"]["setuptools"]["packages"])
    assert all((ROOT / folder / "__init__.py").is_file() for folder in folders)


def test_the_command_and_the_type_marker_are_installed():
    (script,) = entry_points(group="console_scripts", name="rksc-tot")
    assert script.value == "rksc_tot.cli:main"
    assert (ROOT / "rksc_tot" / "py.typed").is_file()


@pytest.mark.parametrize("requirement", requirements())
def test_every_requirement_has_a_lower_bound_that_the_pinned_version_meets(requirement):
    name, least = requirement.split(">=")
    numbers = [tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) for version in (PINS[name], least)]
    assert numbers[0] >= numbers[1]


def test_pins_carry_no_local_suffix_and_no_index():
    assert PINS["torch"] == "2.13.0"
    assert not [version for version in PINS.values() if "+" in version]
    assert "://" not in (ROOT / "constraints.txt").read_text() + (ROOT / "Makefile").read_text()
