"""check_task shows sampled thoughts, and advises a boundary that the model does write."""

import pytest

from rksc_tot.api.check.check_task import check_task
from rksc_tot.core.task import Question
from rksc_tot.engine.mock.engine import MockEngine
from tests.unchecked_task import unchecked_task

LONG = "word " * 60


def findings(writer, what="sampled thoughts", labeller=None, **options):
    options = {"is_solution": lambda problem, path: False, "max_thought_tokens": 40, **options}
    task = unchecked_task(prompt=lambda problem: "p", **options)
    engine = MockEngine(lambda text, rng: writer, labeller)
    return [found for found in check_task(task, "x", engine) if found.what == what]


@pytest.mark.parametrize(
    ("thoughts", "text", "level", "words"),
    [
        ("paragraphs", "a\n\nb", "ok", "3 of 3 sampled thoughts end at 'paragraphs'"),
        ("paragraphs", "a\nb\n" + LONG, "missing", "set thoughts='lines'"),
        ("tag:step", "1. a\nb\n2. c\n" + LONG, "missing", "set thoughts='numbered'"),
        ("tag:step", "<s>a</s>\n" + LONG, "missing", "set thoughts='tag:s'"),
        ("tag:step", "It is. So. " + LONG, "missing", "set thoughts='sentences:2'"),
        ("paragraphs", LONG, "missing", "3 at 40 tokens: raise max_thought_tokens"),
        ("paragraphs", "one", "missing", "a tree has depth 1: ask in the prompt for one step at a time"),
        ("whole", "one", "ok", "3 with the model's text"),
        ("tokens:5", LONG, "ok", "3 at 5 tokens"),
        ("lines:3", "a\nb\nc\nd", "ok", "end at 'lines:3'"),
    ],
)
def test_a_boundary_that_the_model_never_writes_is_found_and_another_is_advised(thoughts, text, level, words):
    [found] = findings(text, thoughts=thoughts)
    assert found.level == level
    assert words in found.message
    assert len(found.texts) == 3


def test_stop_strings_are_named_where_no_boundary_is_set():
    [found] = findings("a" * 50, stop=("END",))
    assert "0 of 3 sampled thoughts end at 'END'" in found.message


def test_the_reply_of_the_model_is_shown_if_labels_get_little_probability():
    question = {"question": lambda problem, path: Question("?", {"yes": 1.0, "no": 0.0})}
    [_, found] = findings("a\n", "question", lambda *asked: {"yes": 0.2, "no": 0.1}, **question)
    assert (found.level, found.texts) == ("missing", ("it wrote 'a\\n'",))


@pytest.mark.parametrize(
    ("thoughts", "words"), [("paragraph", "there is no boundary 'paragraph'"), (3, "thoughts is 3")]
)
def test_an_invalid_boundary_is_an_error_of_the_setting(thoughts, words):
    [found] = findings("a\n", "thoughts", thoughts=thoughts)
    assert found.level == "error"
    assert words in found.message
