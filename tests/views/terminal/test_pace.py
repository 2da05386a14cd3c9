"""The rate limit, with a clock set by the test."""

from rksc_tot.views.terminal.pace import Pace


def test_a_line_is_due_after_each_interval():
    now = [100.0]
    pace = Pace(30, lambda: now[0])
    due = []
    for now[0] in (100, 129, 131, 140, 160, 161, 300, 301):
        due.append(pace.due())
    assert due == [False, False, True, False, False, True, True, False]
