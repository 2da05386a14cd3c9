"""No regular expression of a user hangs a search."""

import re

import pytest

from rksc_tot import MockEngine, rows_task, solve
from rksc_tot.core.errors import TaskError, VerifierError
from rksc_tot.core.plugins import bounded_pattern
from rksc_tot.core.plugins.bounded_pattern import BoundedPattern
from rksc_tot.verifiers import OutcomeCheck, Recompute

HANGS = "(a|aa)+$"
TEXT = "a" * 60 + "b"


@pytest.fixture(autouse=True)
def a_short_time(monkeypatch):
    monkeypatch.setattr(bounded_pattern, "SECONDS", 0.05)


def test_a_search_that_takes_too_long_is_an_error_with_the_pattern():
    for search in (lambda pattern: list(pattern.matches(TEXT)), lambda pattern: pattern.is_whole(TEXT)):
        with pytest.raises(TimeoutError, match=re.escape(f"'{HANGS}' takes more than 0.05 s on 61 characters")):
            search(BoundedPattern(HANGS))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"x = (\d+)", "x = 3, x = 41"),
        (re.compile("answer: (.*)$", re.IGNORECASE | re.MULTILINE), "Answer: a\nANSWER: é\nno"),
        (re.compile(r"(\w+) # a word", re.VERBOSE | re.ASCII), "één twee"),
        (re.compile("a.b", re.DOTALL), "a\nb a\tb"),
        ("a*", "baac"),
        (r"(?P<one>\d)(?=\d)", "1234"),
    ],
)
def test_matches_are_those_of_re(pattern, text):
    found = [(match[0], match.groups(), match.span()) for match in BoundedPattern(pattern).matches(text)]
    assert found == [(match[0], match.groups(), match.span()) for match in re.finditer(pattern, text)]


def test_the_end_of_a_long_text_is_searched():
    text = "9" + "x" * bounded_pattern.LONGEST + "1"
    assert [match[0] for match in BoundedPattern(r"\d").matches(text)] == ["1"]
    assert not BoundedPattern("[9x1]*").is_whole(text)


def run(verifier=None, **options):
    task = rows_task([{"question": "?"}], prompt="{question}", max_thoughts=1, closing=None, **options)
    return solve(task, "?", engine=MockEngine(lambda text, rng: f"{TEXT}\n"), verifier=verifier)


def test_in_a_search_it_is_a_failure_of_the_task_or_of_the_verifier():
    with pytest.raises(TaskError, match="is_solution raised TimeoutError: the regular expression"):
        run(answer=f"regex:{HANGS}")
    with pytest.raises(VerifierError, match="the pattern raised TimeoutError: the regular expression"):
        run(
            OutcomeCheck(pattern=HANGS),
            answer=lambda text: text,
            end_completes=True,
            is_solution=lambda row, path: bool(path),
        )
    with pytest.raises(VerifierError, match="'recompute' failed on node 1: the regular expression"):
        run(Recompute(pattern=f"(?P<work>{HANGS})(?P<value>)"))
