"""Progress and summary of a run agree with its tally."""

import io
import itertools
from collections import Counter

import pytest
from rich.console import Console

from rksc_tot.api.outcomes import RunProgress, Tally
from rksc_tot.api.solve_many import solve_many
from rksc_tot.core.task import function_task
from rksc_tot.engine.base import Usage
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.views.terminal.pace import Pace
from rksc_tot.views.terminal.run_progress import figures, record_of_run, run_progress, run_summary


def tally(**counts):
    stopped = counts.pop("stopped", None)
    made = Tally(
        verdicts=Counter(counts), total=10, started=6, context_tokens=100, context_computed=25, stopped=stopped
    )
    made.spent.tokens_sampled = 300
    return made


def test_figures_exclude_earlier_work_of_the_engine():
    before, now = Usage(10, 1000, 512, 0, None, 0), Usage(20, 1150, 512, 3 << 20, 8 << 20, 2)
    said = figures(tally(right=2, unanswered=1, failed=1), before, now, 2.0)
    assert said == (
        "2.00 problems/s, 150 tokens/s, 15.0 rows a pass, 75% prefill saved, KV 3.0 of 8 MiB, 2 solved, 1 failed"
    )


def test_unknown_figures_are_not_shown():
    nothing = Usage(0, 0, None, 0, None, 0)
    said = figures(Tally(), nothing, nothing, 0.0)
    assert "solved" not in said
    assert "failed" not in said
    assert "of " not in said


CAME_OUT = {"right": 2, "wrong": 1, "unanswered": 1, "cut": 2, "refused": 1, "failed": 1}


def test_the_figures_of_a_record_add_up_over_this_run_and_those_before():
    earlier = RunProgress(verdicts=Counter(right=1, unanswered=2, refused=1), limited=2)
    record = record_of_run(tally(**CAME_OUT), earlier, seconds=1.5)
    assert record["problems"] == 14 == record["done"] + record["cut"] + record["not_started"]
    assert record["done"] == 10 == record["earlier"] + record["now"]
    assert (record["earlier"], record["cut"], record["solved"], record["limited"]) == (4, 2, 3, 2)
    assert (record["failed"], record["refused"]) == (1, 2)


@pytest.mark.parametrize(
    ("checks", "verdicts", "says"),
    [
        (True, {"right": 1, "wrong": 3}, "1 of 4"),
        (True, {"unanswered": 4}, "0 of 4"),
        (True, {"failed": 4}, "0 of 4"),
        (True, {"right": 1, "unchecked": 3}, "1 of 4"),
        (True, {"unchecked": 3, "unanswered": 1}, "not checked"),
        (False, {"unanswered": 4}, "not checked"),
        (True, {"right": 2, "cut": 2}, "2 of 2"),
    ],
)
def test_solved_counts_done_problems_unless_no_answer_was_checked(checks, verdicts, says):
    made = tally(**verdicts)
    made.checks = checks
    assert f"solved {says}" in summary(made)


def summary(made, earlier=None):
    console = Console(file=io.StringIO(), width=60)
    console.print(run_summary(record_of_run(made, earlier or RunProgress(), 1.5)))
    return "\n".join(" ".join(line.split()) for line in console.file.getvalue().splitlines())


def test_the_summary_has_the_figures_of_the_record_without_zeros():
    made = tally(**CAME_OUT, stopped="[bold]x")
    made.limited = 3
    assert summary(made, RunProgress(verdicts=Counter(right=5))).splitlines() == [
        "problems 15", "done 11: 5 earlier, 6 now", "solved 7 of 11", "wrong 1", "no answer 1",
        "failed 1", "refused by the task 1",
        "stopped by its own budget 3", "cut by the run's budget 2", "not started 2", "tokens sampled 300 now",
        "prefill saved 75.0%", "seconds 1.5", "stopped [bold]x",
    ]  # fmt: skip
    short = summary(tally(right=10))
    for zero in (
        "wrong",
        "no answer",
        "failed",
        "refused",
        "own budget",
        "cut",
        "not started",
        "earlier",
        "now",
        "approximate",
    ):
        assert zero not in short


def test_the_summary_says_why_problems_have_no_answer_the_commonest_reason_first():
    made = Tally(total=12, stopped="finished")
    for reason, times in (("the thought is empty", 2), ("no path was complete", 5), ("c", 1), ("d", 1), ("e", 1)):
        for _ in range(times):
            made.count("unanswered", "finished", reason)
    made.count("failed", "", "TaskError: no")
    made.count("cut", "the run's budget of 3 tokens is used up", "the run's budget of 3 tokens is used up")
    earlier = RunProgress()
    earlier.count("unanswered", "finished", "the thought is empty")
    assert summary(made, earlier).splitlines()[2:10] == [
        "solved 0 of 12", "no answer 11", "5× no path was complete", "3× the thought is empty", "1× c",
        "and 2 more reasons", "failed 1", "1× TaskError: no",
    ]  # fmt: skip


def test_the_number_of_counted_reasons_is_bounded():
    made = RunProgress()
    for n in range(200):
        made.count("failed", "", f"reason {n}")
    assert len(made.reasons["failed"]) == 51
    assert made.reasons["failed"]["other reasons"] == 150


def test_problems_on_approximate_kv_are_counted():
    made = tally(right=3)
    made.approximate = 2
    assert "on approximate KV 2\n" in summary(made)
    assert "on approximate KV 2 now\n" in summary(made, RunProgress(verdicts=Counter(right=1)))


def test_the_repr_of_a_tally_has_known_values_only():
    assert repr(Tally()) == "Tally(solved=0)"
    assert repr(Tally(checks=False)) == "Tally()"
    said = "Tally(total=10, started=6, finished=3, solved=1, failed=2, stopped='finished')"
    assert repr(tally(right=1, failed=2, stopped="finished")) == said


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


def test_without_a_terminal_progress_is_a_line_now_and_then():
    task = function_task(prompt=lambda p: f"{p}\n", is_solution=lambda p, path: len(path) == 1, max_thoughts=1)
    engine = MockEngine(lambda text, rng: "x\n")
    run = solve_many(task, range(5), engine=engine)
    console, minutes = Console(file=io.StringIO(), width=20), itertools.count()
    with run_progress(run.tally, engine, console, True, Pace(120, lambda: 60 * next(minutes))) as shown:
        for _ in run:
            shown()
    lines = console.file.getvalue().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["2 of 5 problems", "4 of 5 problems"]
    assert all("rows a pass" in line for line in lines)
