"""The benchmark of the house finds breaches of laws; the source has none."""

import pytest

from benchmarks.quality.house import HOME, measure


@pytest.fixture
def house(tmp_path):
    """Write files and count their breaches."""

    def build(files):
        for name, text in files.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return measure(tmp_path)

    return build


def test_a_clean_source_has_no_breach(house):
    found = house({"rksc_tot/search/a": "from rksc_tot.core import b", "rksc_tot/core/b": "class One: pass"})
    assert (found["rooms"], found["arrows"], found["files"]) == (2, 1, 2)
    assert not any(name.endswith(".of") for name in found)


@pytest.mark.parametrize(
    "line",
    [
        "import rksc_tot.search.a",
        "from rksc_tot.search import a",
        "from rksc_tot.search.a import x",
        "def f():\n    from rksc_tot.search import a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rksc_tot.search.a import x",
        "from ..search import a",
    ],
)
def test_every_kind_of_import_counts_as_an_arrow(house, line):
    found = house({"rksc_tot/search/a": "", "rksc_tot/core/b": line})
    assert found["arrows_up.of"] == ["rksc_tot.core.b -> rksc_tot.search.a"]


def test_the_front_of_the_package_is_above_every_room(house):
    found = house({"rksc_tot/__init__": "x = 1", "rksc_tot/core/b": "from rksc_tot import x"})
    assert found["arrows_up.of"] == ["rksc_tot.core.b -> rksc_tot"]


def test_rooms_on_one_floor_do_not_import_each_other(house):
    found = house({"strategies/a": "from rksc_tot.verifiers import b", "verifiers/b": ""})
    assert found["arrows_up.of"] == ["rksc_tot.strategies.a -> rksc_tot.verifiers.b"]


def test_circles_of_files_and_of_folders_are_found(house):
    found = house({
        "rksc_tot/core/a": "from rksc_tot.core.b import x",
        "rksc_tot/core/b": "def f():\n    from rksc_tot.core.a import y",
        "rksc_tot/engine/jobs/a": "from rksc_tot.engine.kv.a import x",
        "rksc_tot/engine/kv/a": "",
        "rksc_tot/engine/kv/b": "from rksc_tot.engine.jobs.b import x",
        "rksc_tot/engine/jobs/b": "",
    })  # fmt: skip
    assert found["circles.of"] == ["rksc_tot.core.a <-> rksc_tot.core.b"]
    assert "rksc_tot.engine.jobs <-> rksc_tot.engine.kv" in found["circles_of_siblings.of"]


def test_entries_lines_methods_and_names_are_counted(house):
    methods = "\n".join(f"    def m{n}(self): pass" for n in range(26))
    found = house({
        "rksc_tot/core/big": f"class Big:\n{methods}",
        "rksc_tot/core/long": "\n" * 351,
        "benchmarks/x": "class Big: pass",
        "tests/test_x": "\n" * 352,
        **{f"rksc_tot/core/f{n}": "" for n in range(9)},
    })  # fmt: skip
    assert found["classes_over_25.of"] == ["rksc_tot.core.big.Big: 26"]
    assert found["files_over_350.of"] == ["rksc_tot/core/long.py: 351"]
    assert found["tests_over_350.of"] == ["tests/test_x.py: 352"]
    assert found["levels_over_10.of"] == ["rksc_tot/core: 11"]
    assert found["names_twice.of"] == ["Big: rksc_tot.core.big, benchmarks.x"]


@pytest.fixture(scope="module")
def ours():
    return measure(HOME)


@pytest.mark.parametrize("law", ["arrows_up", "circles", "circles_of_siblings", "levels_over_10", "names_twice"])
def test_the_source_keeps_the_laws(ours, law):
    assert ours.get(f"{law}.of", []) == []
