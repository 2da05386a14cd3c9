import re
from pathlib import Path

import pytest

import rksc_tot
from tests.game24_player import player

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
BLOCKS = PYTHON.findall(README)
MANY = PYTHON.findall((ROOT / "docs" / "many.md").read_text(encoding="utf-8"))


@pytest.fixture
def ran(monkeypatch, capsys):
    load_engine, names = rksc_tot.load_engine, {}
    for block in (*MANY, *BLOCKS):
        monkeypatch.setattr(rksc_tot, "load_engine", load_engine if "RKSC" in block else player)
        exec(compile(block, "README.md", "exec"), names)
    return names


def test_the_readme_examples_run_unchanged(ran):
    assert ran["result"].stopped == "finished" or "budget" in ran["result"].stopped
    assert ran["result"].ledger.verifier_calls > 0


def test_the_first_example_prints_its_comment(capsys):
    exec(compile(BLOCKS[0], "README.md", "exec"), {})
    said = re.search(r"print\(result\.answer\)  # (.*)", BLOCKS[0])[1]
    assert capsys.readouterr().out == f"{said}\n"
    assert said.endswith("24 (left: 24)")


def test_the_keys_of_a_results_file_are_the_documented_ones():
    from rksc_tot.api.jsonl_reader import RESULT_KEYS
    from rksc_tot.api.result import Result

    many = (ROOT / "docs" / "many.md").read_text(encoding="utf-8")
    table = many[many.index("| key |") :].partition("\n\n")[0]
    for key in {*RESULT_KEYS, *Result.model_fields} - {"problem", "settings"}:
        assert f"`{key}`" in table
    reserved = ", ".join(f"`{key}`" for key in RESULT_KEYS)
    assert reserved in many
    assert reserved.replace(", `settings`", " and `settings`") in README.replace("\n", " ")


def test_the_examples_are_as_short_as_they_claim():
    assert len(BLOCKS[0].splitlines()) <= 10
    assert len(re.search(r"class .*?\n\n(?=result)", BLOCKS[1], re.DOTALL)[0].splitlines()) <= 25


def test_the_page_is_short_and_set_up_is_one_command():
    assert len(README.splitlines()) <= 150
    quick = README.partition("## Quick start")[2]
    assert re.search(r"```sh\n(\S+ \S+)", quick)[1] == "make demo"
