import re
from pathlib import Path

import pytest

import rksc_tot

from .game24_player import player

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def ran(monkeypatch, capsys):
    load_engine, names = rksc_tot.load_engine, {}
    for block in BLOCKS:
        monkeypatch.setattr(rksc_tot, "load_engine", load_engine if "RKSC" in block else player)
        exec(compile(block, "README.md", "exec"), names)
    return names


def test_the_examples_run_as_they_stand(ran):
    assert ran["result"].stopped == "finished" or "budget" in ran["result"].stopped
    assert ran["result"].ledger.verifier_calls > 0


def test_the_examples_are_as_short_as_they_claim():
    assert len(BLOCKS[0].splitlines()) <= 10
    assert len(re.search(r"class .*?\n\n(?=result)", BLOCKS[1], re.DOTALL)[0].splitlines()) <= 25


def test_there_are_exactly_two_set_up_commands():
    setup = re.search(r"## Set-up\n+```sh\n(.*?)```", README, re.DOTALL)[1]
    assert [line.split("#")[0].strip() for line in setup.splitlines()] == ["make demo", "make test"]
