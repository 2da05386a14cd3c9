import io

import pytest
from rich.console import Console

from rksc_tot.api.result import Result
from rksc_tot.core.ledger import Ledger
from rksc_tot.core.tree import ReasoningTree
from rksc_tot.evaluation import Failure, Row
from rksc_tot.views.terminal import report
from rksc_tot.views.terminal.comparison_table import comparison_table

HOSTILE = "[bold red]x[/] \x1b[2J \u202e \ud800\n" * 20


def shown(renderable):
    console = Console(file=io.StringIO(), width=80)
    console.print(renderable)
    return console.file.getvalue()


def result(**fields):
    tree = ReasoningTree()
    tree.add()
    usual = {
        "problem": "p", "answer": "a", "correct": True, "best": 0, "path": ["one", "two"], "stopped": "finished", "tree": tree,
        "ledger": Ledger(tokens_sampled=7, context_tokens=10, context_computed=3, seconds={"total": 1.5}), "numerics": {},
        "rejections": {},
        "settings": {"strategy": {"name": "bfs", "k": 5}, "verifier": "random", "seed": 1},
    }  # fmt: skip
    return Result(**{**usual, **fields})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "answer: a  (right)"),
        ({"correct": False}, "answer: a  (wrong)"),
        ({"correct": None}, "answer: a\n"),
        (
            {"answer": None, "correct": None, "stopped": "the budget of 3 nodes is used up"},
            "no answer: the budget of 3",
        ),
        ({"answer": None, "correct": None, "stopped": "the budget"}, "what to do: raise or remove the limit"),
        ({"answer": None, "correct": None}, "no answer: no path was complete\nwhat to do: check_task("),
        ({"answer": None, "correct": None, "rejections": {"a": 1, "b": 2}}, "no answer: b\n"),
        ({"stopped": "interrupted"}, "answer: a  (right)\nstopped: interrupted"),
        ({"path": []}, "(no thoughts)"),
        ({}, "70.0%"),
        ({}, "strategy bfs (k=5), verifier random, seed 1"),
        (
            {
                "settings": {
                    "strategy": "bfs",
                    "verifier": {
                        "name": "ensemble",
                        "members": [{"name": "judge", "prompt": "x" * 99}, {"name": "prm", "folder": "f"}],
                        "weights": [],
                        "engine": {"name": "mock", "a": 1},
                        "prompt": "y" * 99,
                    },
                }
            },
            f"verifier ensemble (members=judge + prm, engine=mock,\nprompt={'y' * 39}…), seed None",
        ),
        ({"ledger": Ledger()}, "seconds"),
    ],
)
def test_a_report_has_path_answer_and_ledger(fields, says):
    assert says in shown(report(result(**fields))).replace(" \n", "\n")


def test_a_report_without_an_answer_has_the_reasons_for_rejected_thoughts():
    rejections = {"parse raised ZeroDivisionError": 9, "the thought is empty": 3, "no step": 2}
    lines = shown(report(result(answer=None, correct=None, rejections=rejections))).splitlines()
    said = [line.strip() for line in lines if line.startswith("rejected")]
    assert said == ["rejected 9×: parse raised ZeroDivisionError", "rejected 3×: the thought is empty"]


def test_a_report_with_an_answer_has_only_the_commonest_reason():
    rejections = {"parse raised ZeroDivisionError": 9, "the thought is empty": 3}
    lines = shown(report(result(rejections=rejections))).splitlines()
    assert [line.strip() for line in lines if line.startswith("rejected")] == [
        "rejected 9×: parse raised ZeroDivisionError"
    ]
    assert "rejected 9" not in shown(report(result()))


def test_hostile_text_is_shown_as_text():
    out = shown(report(result(answer=HOSTILE, path=[HOSTILE], stopped=HOSTILE, settings={"strategy": HOSTILE})))
    out += shown(report(result(answer=None, correct=None, rejections={HOSTILE: 1})))
    out += shown(comparison_table([Row(strategy=HOSTILE, n=1, failures=[Failure(problem=HOSTILE, error=HOSTILE)])]))
    assert all(c.isprintable() or c == "\n" for c in out)
    assert "[bold red]x[/]" in out


def test_a_table_of_large_figures_fits_80_columns():
    row = Row(
        strategy="a label of some length",
        solved=100,
        n=100,
        tokens=9_999_999,
        prefill_tokens=1_000_000,
        seconds=12345.6,
    )
    lines = shown(comparison_table([row])).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "12345.6" in shown(comparison_table([row]))


def test_each_failure_is_shown_once_up_to_a_limit():
    rows = [
        Row(strategy=label, n=9, failures=[Failure(problem=str(i), error="bad") for i in range(9)])
        for label in ("a", "b")
    ]
    out = shown(comparison_table(rows))
    assert "0: failed in 2 rows: bad" in out
    assert "and 4 more failures" in out


def test_rows_computed_again_are_marked_with_both_reasons():
    out = " ".join(shown(comparison_table([Row(strategy="a", prefill_tokens=2, distinct_tokens=1)])).split())
    assert "* more than the distinct tokens" in out
    assert "after an eviction or to get the logits of a stored path" in out
