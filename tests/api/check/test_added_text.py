"""``check_task`` on texts that a task puts on the path: ``Task.closing`` and ``Task.observe``."""

import pytest

from rksc_tot.api.check.check_task import check_task
from rksc_tot.core.task import Thought
from rksc_tot.engine.mock.engine import MockEngine
from tests.search.mock_search import fail, make_task


def findings(level, what, engine=None, **options):
    found = check_task(make_task(**options), "p", engine)
    return [finding.message for finding in found if (finding.level, finding.what) == (level, what)]


def test_a_task_without_them_has_no_finding_about_them():
    assert not {finding.what for finding in check_task(make_task(), "p")} & {"closing", "observe"}


def test_the_greedy_path_shows_the_reply_to_the_closing():
    engine = MockEngine(lambda text, rng: " 42\n" if text.endswith("is") else "hm\n")
    options = {"is_solution": lambda problem, path: False, "closing": "The answer is"}
    assert findings("ok", "closing", **options) == ["a path without an answer is asked for it by 'The answer is'"]
    assert findings("ok", "greedy path", engine, **options) == [
        "the model's greedy path is a solution after 4 thoughts, the last of them the reply to closing: ' 42'"
    ]
    assert engine.handles == 0


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        ("closing", {"closing": ""}, "closing is empty"),
        ("closing", {"closing": 5}, "closing is 5, neither a string"),
        ("closing", {"closing": [{"role": "user", "content": "So?"}]}, "make closing a string"),
        ("closing_tokens", {"closing": "So", "closing_tokens": 0}, "closing_tokens is 0"),
        ("closing_stop", {"closing": "So", "closing_stop": "\n"}, "not a sequence of strings"),
        ("observe_timeout", {"observe_timeout": 0}, "observe_timeout is 0, not a number of seconds above 0"),
        ("observe_timeout", {"observe_timeout": float("nan")}, "not a number of seconds above 0"),
        ("observe_attempts", {"observe_attempts": 0}, "observe_attempts is 0"),
        ("observe_chars", {"observe_chars": 1.5}, "observe_chars is 1.5"),
        ("observe", {"observe": lambda problem, path: fail(OSError("away"))}, "observe raised OSError: away on"),
        ("observe", {"observe": lambda problem, path: 5}, "observe returned 5, not a text or None"),
        ("observe", {"observe": lambda problem, path: "x" * 9, "observe_chars": 8}, "has 9 characters"),
    ],
)
def test_what_is_wrong_with_them_is_an_error(what, options, message):
    [found] = findings("error", what, **options)
    assert message in found


async def said(problem, path):
    path.state.append(1)
    return f"state {path.state}"


def test_observe_is_called_on_a_copy_of_the_state():
    state = []
    options = {"parse": lambda problem, path, text: Thought(text, state), "observe": said}
    assert findings("ok", "observe", **options) == ["observe said 'state [1]' after 'a sample thought'"]
    assert state == []
