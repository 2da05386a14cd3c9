"""What check_task finds about thinking blocks."""

import pytest

from benchmarks.common.thinking_models import random_llama, thinking_tokenizer
from rksc_tot import MockEngine, Thinking, check_task, function_task
from rksc_tot.engine import TransformersEngine

OPEN = "<think>"


def found(writer, engine=None, **options):
    options = {"prompt": lambda problem: "p:\n"} | options
    task = function_task(is_solution=lambda problem, path: len(path) == 2, **options)
    findings = check_task(task, "p", engine or MockEngine(writer))
    return [f for f in findings if f.what == "thinking"][-1]


def test_a_model_that_thinks_without_being_asked_is_reported():
    finding = found(lambda text, rng: "<think>so\n")
    assert finding.level == "missing"
    assert finding.message == (
        "the model writes a thinking block <think>...</think>, and the task has no thinking: set it, such as Thinking(budget=512)"
    )


def test_a_model_that_does_not_think_needs_no_setting():
    assert found(lambda text, rng: "42\n").level == "ok"


def test_a_template_that_opens_a_block_is_reported_whatever_the_model_writes():
    tokenizer = thinking_tokenizer("opening")
    with TransformersEngine(random_llama(len(tokenizer)), tokenizer, name="tiny") as engine:
        finding = found(None, engine, prompt=lambda problem: [{"role": "user", "content": problem}])
    assert finding.message.startswith("the prompt opens a thinking block <think>...</think>")


def test_blocks_that_the_model_closes_are_counted():
    def writer(text, rng):
        return f"{rng.random()}</think>" if text.endswith(OPEN) else "42\n"

    finding = found(writer, thinking=Thinking(budget=30))
    assert (finding.level, finding.message) == ("ok", "the model closed 3 of 3 sampled thinking blocks")


def test_a_task_with_thinking_for_a_model_that_never_closes_a_block_is_reported():
    finding = found(lambda text, rng: "42 and on\n", thinking=Thinking(budget=5))
    assert finding.level == "missing"
    assert finding.message.startswith(
        "the model closed none of 3 sampled thinking blocks within 5 tokens: raise the budget"
    )


def test_a_model_without_markers_is_an_error_that_says_how_to_name_them():
    tokenizer = thinking_tokenizer("plain")
    tokenizer.chat_template = None
    with TransformersEngine(random_llama(len(tokenizer)), tokenizer, name="tiny") as engine:
        task = function_task(
            prompt=lambda problem: "p:\n", is_solution=lambda problem, path: len(path) == 2, thinking=Thinking()
        )
        errors = [finding.message for finding in check_task(task, "p", engine) if finding.level == "error"]
    assert any("name them, such as Thinking(markers=" in message for message in errors)


@pytest.mark.parametrize("thought", ["after", "inside", "whole"])
def test_every_form_of_a_thought_is_checked(thought):
    def writer(text, rng):
        return "one\ntwo</think>" if text.endswith(OPEN) else "42\n"

    assert found(writer, thinking=Thinking(thought=thought)).level == "ok"
