"""Every script in examples/ runs unchanged on the built-in model and prints its results."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SHOWN = {
    "game24": "4 5 6 10: ",
    "chat_task": "voted answer: ",
    "own_verifier": "near_24",
    "own_strategy": "best_first: ",
}


def test_every_example_is_listed_and_short():
    scripts = {file.stem: file for file in EXAMPLES.glob("*.py")}
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert set(scripts) == set(SHOWN)
    assert all(f"`{file.name}`" in listed for file in scripts.values())
    assert all(len(file.read_text(encoding="utf-8").splitlines()) <= 60 for file in scripts.values())


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_runs_unchanged(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert SHOWN[name] in capsys.readouterr().out
