"""Checks of values that a task returned. Each check returns a message about what is wrong, or None."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, finite, shown, text_of
from rksc_tot.core.task import Prompt, Question
from rksc_tot.core.task.task_settings import prompt_fault, text_fault


class Fault(str):
    """A failure of the task: why a thought or an answer cannot be used although the task did not reject it.

    ``error``: the exception of the task, None if it returned an invalid value.
    """

    error: BaseException | None

    def __new__(cls, text: object, error: BaseException | None = None) -> Fault:
        """``text``: the message, or a UserCodeError, whose exception becomes ``error``."""
        fault = super().__new__(cls, text)
        fault.error = text.error if isinstance(text, UserCodeError) else error
        return fault


def problem_fault(problem: object) -> Fault | None:
    """Why ``str(problem)`` cannot name a random stream, as a predicate such as ``has no text``; None if it can."""
    try:
        with calling_user_code("its str()"):
            text = str(problem)
    except UserCodeError as raised:
        return Fault(f"has no text: {raised}", raised.error)
    if fault := text_fault(text):
        return Fault(fault)
    return next((Fault(fault) for value in _values(problem) if (fault := _unstable(value))), None)


def _values(value: object) -> Iterator[object]:
    """A value and, if it is a container, all values in it."""
    yield value
    inside = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
    if isinstance(inside, list | tuple | set | frozenset):
        for each in inside:
            yield from _values(each)


def _unstable(value: object) -> str | None:
    """Why the text of a value differs between processes, None if it does not."""
    if isinstance(value, set | frozenset):
        if len(value) < 2:
            return None
        return "holds a set, whose order differs between processes: let validate return a sorted tuple instead"
    if isinstance(value, Mapping | list | tuple) or f"{id(value):x}" not in text_of(value).lower():
        return None
    return "has a memory address in its str(), so a search could not be repeated: write its __str__"


def closing_fault(closing: Prompt | None, prompt: Prompt) -> str | None:
    """Why a closing cannot follow a prompt, as a predicate of the prompt; None if it can."""
    if closing is None or isinstance(closing, str) or not isinstance(prompt, str):
        return None
    return "is plain text, which chat messages in Task.closing cannot follow: make closing a string"


def label_fault(labels: object) -> str | None:
    """Why the labels of a question are invalid, as a sentence; None if they are valid."""
    if not isinstance(labels, Mapping) or not all(isinstance(label, str) for label in labels):
        return f"the labels are {shown(labels)}, not a mapping from label to value"
    if len({label.strip() for label in labels}) < len(labels) or not all(label.strip() for label in labels):
        return f"the labels {', '.join(map(repr, labels))} are empty or not distinct"
    for label, worth in labels.items():
        if fault := text_fault(label):
            return f"the label {label!r} {fault}"
        if finite(worth) is None:
            return f"the label {label!r} has the value {shown(worth)}, not a finite number"
    if len(labels) < 2:
        return f"the labels are {shown(dict(labels))}: a question needs at least two"
    return None


def question_fault(question: object) -> str | None:
    """Why a question is invalid, as a sentence; None if it is valid."""
    if not isinstance(question, Question):
        return f"question returned {shown(question)}, not a Question"
    if fault := prompt_fault(question.text):
        return f"the text of the question {fault}"
    return label_fault(question.labels)
