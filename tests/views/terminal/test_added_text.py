"""The terminal shows which texts on a path the model did not write: closings and observations."""

import io

import pytest
from rich.console import Console

from rksc_tot.api.solve import solve
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.views.terminal import report
from rksc_tot.views.terminal.live_tree import LiveTree
from tests.search.mock_search import make_task


def shown(encoding="utf-8", **options):
    """The tree and the report of a greedy chain."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=100)
    engine = MockEngine(lambda text, rng: " 42\n" if text.endswith("is") else "3 * 14\n")
    with LiveTree("p", console=console) as live:
        task = make_task(depth=1, **options)
        result = solve(task, "p", engine=engine, strategy="cot", on_event=live.update)
    console.print(report(result))
    file.seek(0)
    return file.read()


CLOSING = {"closing": "\nThe answer is", "is_solution": lambda problem, path: False}
OBSERVED = {"observe": lambda problem, path: "[bold]= 42\n"}


def test_the_reply_to_a_closing_is_marked_and_counted():
    text = shown(**CLOSING)
    assert "▶ ? 42" in text
    assert "? reply to the closing" in text
    assert "2. The answer is 42" in text
    assert "closings          1" in text


@pytest.mark.parametrize(("encoding", "sign"), [("utf-8", "⇒"), ("ascii", "=>")])
def test_an_observation_stands_behind_its_thought_and_is_counted(encoding, sign):
    text = shown(encoding, **OBSERVED)
    assert f"3 * 14 {sign} [bold]= 42" in text
    assert f"{sign} observation" in text
    assert "1. 3 * 14 [bold]= 42" in text
    assert "observations      1" in text


def test_other_searches_show_neither():
    text = shown()
    assert not [word for word in ("closing", "observation", "⇒") if word in text]
