"""What is shown of a run says what its tally says."""

import io

import pytest
from rich.console import Console

from rksc_tot.engine.base import Usage
from rksc_tot.engine.mock import MockEngine
from rksc_tot.many import solve_many
from rksc_tot.outcome import Tally
from rksc_tot.show.run import figures, record_of_run, run_progress, run_summary
from rksc_tot.task import function_task


def tally(**counts):
    made = Tally(total=10, started=6, finished=4, context_tokens=100, context_computed=25, **counts)
    made.spent.tokens_sampled = 300
    return made


def test_the_figures_are_of_the_run_and_not_of_what_the_engine_did_before():
    before, now = Usage(10, 1000, 512, 0, None, 0), Usage(20, 1150, 512, 3 << 20, 8 << 20, 2)
    said = figures(tally(checked=4, solved=3, failed=1), before, now, 2.0)
    assert said == (
        "2.00 problems/s, 150 tokens/s, 15.0 rows a pass, 75% prefill saved, KV 3.0 of 8 MiB, 3 solved, 1 failed"
    )


def test_what_is_not_known_is_not_said():
    nothing = Usage(0, 0, None, 0, None, 0)
    said = figures(Tally(), nothing, nothing, 0.0)
    assert "solved" not in said
    assert "failed" not in said
    assert "of " not in said


@pytest.mark.parametrize(("checked", "solved"), [(0, None), (2, 1)])
def test_the_summary_has_what_the_record_has(checked, solved):
    record = record_of_run(tally(checked=checked, solved=1, cut=2, stopped="[bold]x"), earlier=5, seconds=1.5)
    assert (record["problems"], record["not_started"], record["solved"]) == (15, 6, solved)
    console = Console(file=io.StringIO(), width=60)
    console.print(run_summary(record))
    text = console.file.getvalue()
    for part in (
        "15",
        "done earlier",
        "not started",
        "75.0%",
        "300",
        "[bold]x",
        "1 of 4" if checked else "not checked",
    ):
        assert part in text


@pytest.mark.parametrize(("terminal", "shown"), [(True, True), (True, False), (False, True)])
def test_progress_is_drawn_on_a_terminal_only_and_only_if_wanted(terminal, shown):
    task = function_task(prompt=lambda p: f"{p}\n", is_solution=lambda p, path: len(path) == 1, max_thoughts=1)
    engine = MockEngine(lambda text, rng: "x\n")
    run = solve_many(task, range(5), engine=engine)
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with run_progress(run.tally, engine, console, shown):
        assert len(list(run)) == 5
    drawn = console.file.getvalue()
    assert ("5/5" in drawn and "rows a pass" in drawn) == (terminal and shown)
    assert terminal or not drawn
