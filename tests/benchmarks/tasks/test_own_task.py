"""The eight tasks run, are as short as promised, and the shares are those of the searches."""

from benchmarks.tasks import own_task
from benchmarks.tasks.eight_tasks import ROWS, TASKS
from rksc_tot import MockEngine
from rksc_tot.tasks.rows.task import rows_task
from tests.game24_player import write


def test_the_eight_tasks_are_short_and_run():
    engine = MockEngine(lambda text, rng: write(text, rng) if text.startswith("steps") else "so it is B. 13\n")
    assert sum(map(len, TASKS.values())) == len(ROWS) == 8
    assert own_task.run_all(engine) == 8
    most = own_task.lines()["lines_most"]
    assert most["rows"] <= 6
    assert most["function"] <= 10
    assert most["class"] <= 25


def test_a_share_counts_searches_that_ended_with_an_answer():
    rows = [{"question": "a", "answer": 1}, {"question": "b", "answer": 2}]
    task = rows_task(rows, prompt="{question}\n", max_thoughts=2)
    engine = MockEngine(lambda text, rng: " 1\n" if text.endswith("is") and text[0] == "a" else "no\n")
    found = own_task.measure(task, engine, ["cot", "beam"], "")
    assert [(row.strategy, row.solved, own_task.answered(row)) for row in found] == [("cot", 1, 0.5), ("beam", 1, 0.5)]


def test_without_a_file_the_rows_are_puzzles_with_a_check():
    task = own_task.own_rows(None, 3)
    assert len(task.problems) == 3
    assert task.check(task.problems[0].problem, "24") is True
