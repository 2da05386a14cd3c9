"""The human verifier: at a terminal, through a function, and where there is neither."""

import asyncio
import io
import os
import pty
import sys

import pytest

from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError, VerifierError
from rksc_tot.core.task import function_task
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.search import Search
from rksc_tot.verifiers import Human, PathView
from tests.patience import PATIENCE


def make_search(verifier, texts=("one\n", "two\n", "three\n"), **options):
    given = iter(texts)
    task = function_task(prompt=lambda problem: "go\n", is_solution=lambda problem, path: False)
    return Search(task, "the problem", MockEngine(lambda text, rng: next(given)), verifier, **options)


async def scored(verifier, n=3, **options):
    search = make_search(verifier, **options)
    level = await search.expand([search.root], n)
    await search.score(level)
    return search, level


@pytest.fixture
def terminal(monkeypatch):
    """The far end of a terminal that is the standard input, as a file descriptor."""
    far, near = pty.openpty()
    with os.fdopen(near, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield far
    os.close(far)


async def test_a_person_answers_at_the_terminal_and_sees_the_path(terminal, capsys):
    os.write(terminal, b"y\nmaybe\n0.25\n\n")
    search, level = await scored(Human())
    assert [node.score for node in level] == [1.0, 0.25, 0.5]
    assert search.ledger.abstentions == 1
    shown = capsys.readouterr().err
    assert "Problem: the problem\n  1. one\nThe path goes on.\n" in shown
    assert "'maybe' is not one of these" in shown


async def test_answers_that_cannot_be_read_are_asked_again_a_few_times(terminal):
    os.write(terminal, b"2\nnan\nx\nn\n")
    search, level = await scored(Human(), 2)
    assert [node.score for node in level] == [0.5, 0.0]
    assert search.ledger.abstentions == 1


async def test_a_hostile_thought_cannot_write_control_characters_to_the_terminal(terminal, capsys):
    os.write(terminal, b"n\n")
    await scored(Human(longest=30), 1, texts=["\x1b[2J\x07 erase" + "x" * 60 + "\n"])
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert "�[2J� erase" in shown
    assert "x" * 30 not in shown


async def test_the_end_of_the_input_skips(terminal):
    os.write(terminal, b"\x04")
    _, level = await scored(Human(), 1)
    assert level[0].score == 0.5


async def test_a_cancelled_question_reads_nothing(terminal):
    search = make_search(Human())
    level = await search.expand([search.root], 1)
    asking = asyncio.ensure_future(search.score(level))
    await asyncio.sleep(0.05)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    os.write(terminal, b"for the next program\n")
    assert sys.stdin.readline() == "for the next program\n"


async def test_a_person_who_does_not_answer_in_time_abstains_and_after_the_deadline_nothing_is_asked(terminal):
    search, level = await scored(Human(timeout=0.05), 1)
    assert ([node.score for node in level], search.ledger.abstentions) == ([0.5], 1)
    late = make_search(Human(), budget=Budget(seconds=PATIENCE))
    level = await late.expand([late.root], 1)
    late.limits.account.deadline = 0.0
    assert await late.verifier.score(late, level) == [None]


async def test_without_a_terminal_a_sentence_says_what_to_do(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    for stdin in (io.StringIO("y\n"), None):
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(
            VerifierError, match="the input is not a terminal - run it in a terminal, or give a function"
        ):
            await scored(Human())


async def test_a_function_is_asked_about_one_path_at_a_time():
    running = 0

    async def ask(problem, path):
        nonlocal running
        running += 1
        assert (running, problem, type(path)) == (1, "the problem", PathView)
        await asyncio.sleep(0)
        running -= 1
        return {"one": True, "two": 0.25, "three": None}[path.text]

    verifier = Human(ask=ask)
    (_, one), (search, two) = await asyncio.gather(scored(verifier), scored(verifier))
    assert [node.score for node in one] == [node.score for node in two] == [1.0, 0.25, 0.5]
    assert search.ledger.abstentions == 1


async def test_an_answer_that_is_no_number_from_0_to_1_costs_only_its_node():
    answers = iter([0.5, 7, "good"])
    _, level = await scored(Human(ask=lambda problem, path: next(answers)))
    assert [node.score for node in level] == [0.5, None, None]
    assert "the answer is 7" in level[1].pruned


async def test_no_more_questions_are_asked_than_allowed():
    asked = []
    search, level = await scored(Human(ask=lambda problem, path: asked.append(path) or 1.0, most=2))
    assert [node.score for node in level] == [1.0, 1.0, 0.5]
    assert len(asked) == 2
    assert search.ledger.abstentions == 1


def test_bad_settings_are_refused():
    for settings in ({"timeout": 0}, {"most": 0}, {"abstained": 2}, {"ask": "me"}):
        with pytest.raises(ConfigError, match=next(iter(settings))):
            Human(**settings)
