"""Checks of values that a task returned. Each check returns a message about what is wrong, or None."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, plain_str, shown, text_of
from rksc_tot.core.task import ChatOrText, Constraint, Prompt, Question, Task, Thinking
from rksc_tot.core.task.boundary import Boundary
from rksc_tot.engine.base import Sampling


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


def setting_faults(task: Task) -> Iterator[tuple[str, str]]:
    """The invalid settings of a task: name and message of each."""
    for name in ("stop", "propose_stop", "closing_stop"):
        stop: object = getattr(task, name)
        if isinstance(stop, str) or not isinstance(stop, Sequence) or not all(isinstance(text, str) for text in stop):
            yield name, f"{name} is {shown(stop)}, not a sequence of strings such as ('\\n',)"
        elif "" in stop:
            yield name, f"{name} {shown(tuple(stop))} holds the empty string, which ends every thought at once"
    if fault := boundary_fault(task.thoughts):
        yield "thoughts", fault
    for name in ("max_thought_tokens", "max_thoughts", "closing_tokens", "observe_attempts", "observe_chars"):
        number: object = getattr(task, name)
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            yield name, f"{name} is {shown(number)}, not a whole number of at least 1"
    for name in ("keep_stop", "skip_blank", "end_completes", "accept_truncated"):
        if not isinstance(getattr(task, name), bool):
            yield name, f"{name} is {shown(getattr(task, name))}, not True or False"
    yield from _added_text_faults(task)
    settings: object = task.strategy_settings
    if not isinstance(settings, Mapping) or not all(isinstance(own, Mapping) for own in settings.values()):
        yield (
            "strategy_settings",
            f"strategy_settings is {shown(settings)}, not a mapping from strategies to settings such as {{'bfs': {{'k': 9}}}}",
        )
    yield from _constraint_faults(task)
    yield from _thinking_faults(task)
    if task.mode not in ("sample", "propose"):
        yield "mode", f"mode is {shown(task.mode)}, not 'sample' or 'propose'"
    for name in Sampling.model_fields:
        try:
            Sampling(**{name: getattr(task, name)})
        except ConfigError as error:
            yield name, error.message.removeprefix("sampling: ")


def boundary_fault(thoughts: object) -> str | None:
    """Why the setting ``thoughts`` is invalid; None if it is valid."""
    if thoughts is None or isinstance(thoughts, Boundary):
        return None
    if not isinstance(thoughts, str):
        return f"thoughts is {shown(thoughts)}, not a Boundary or its name, such as 'paragraphs'"
    try:
        Boundary.of(thoughts)
    except ConfigError as error:
        return f"thoughts: {error}"
    return None


def _added_text_faults(task: Task) -> Iterator[tuple[str, str]]:
    """The invalid settings of the texts that a task puts on a path."""
    if task.closing is not None and (fault := prompt_fault(task.closing)):
        yield "closing", f"closing {fault}"
    seconds: object = task.observe_timeout
    if seconds is not None and not (finite(seconds) or 0.0) > 0:
        yield "observe_timeout", f"observe_timeout is {shown(seconds)}, not a number of seconds above 0, or None"


def _constraint_faults(task: Task) -> Iterator[tuple[str, str]]:
    constraint: object = task.constraint
    if constraint is None:
        return
    if not isinstance(constraint, Constraint) and not callable(constraint):
        wrong = f"constraint is {shown(constraint)}, not what json_schema, regex or grammar return, or a function"
        yield "constraint", wrong
    if isinstance(task.thinking, Thinking) and task.thinking.thought != "after":
        yield "constraint", f"a constraint needs thinking with thought 'after', not {task.thinking.thought!r}"


def _thinking_faults(task: Task) -> Iterator[tuple[str, str]]:
    thinking: object = task.thinking
    if thinking is not None and not isinstance(thinking, Thinking):
        yield "thinking", f"thinking is {shown(thinking)}, not None or a Thinking, such as Thinking(budget=512)"
    elif thinking is not None and task.mode == "propose":
        yield "thinking", "thinking does not work in mode 'propose': use mode 'sample', or set thinking to None"


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


def text_fault(text: str) -> str | None:
    """Why a text cannot be encoded, as a predicate; None if it can."""
    plain = plain_str(text)
    return "holds half a character (a lone surrogate)" if any("\ud800" <= c <= "\udfff" for c in plain) else None


def prompt_fault(prompt: object) -> str | None:
    """Why a prompt is invalid, as a predicate such as ``is empty``; None if it is valid."""
    if isinstance(prompt, str):
        return text_fault(prompt) if plain_str(prompt) else "is empty"
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        return f"is {shown(prompt)}, neither a string nor a list of chat messages"
    if not prompt:
        return "holds no message"
    for message in prompt:
        if not isinstance(message, Mapping) or {"role", "content"} - message.keys():
            return f"holds {shown(message)}, not a message with role and content"
        if not all(isinstance(message[key], str) for key in ("role", "content")):
            return f"holds {shown(message)}, whose role or content is not a string"
        if fault := text_fault(message["role"]) or text_fault(message["content"]):
            return fault
    return None


def plain_prompt(prompt: Prompt) -> Prompt:
    """A prompt without a fault in plain strings, without the methods of their subclasses."""
    if isinstance(prompt, str):
        return plain_str(prompt)
    texts = [(message["role"], message["content"]) for message in prompt]
    if all(type(role) is type(content) is str for role, content in texts):
        return prompt
    messages = [
        {**message, "role": plain_str(role), "content": plain_str(content)}
        for message, (role, content) in zip(prompt, texts, strict=True)
    ]
    return ChatOrText(messages, plain_str(prompt.text)) if isinstance(prompt, ChatOrText) else messages


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


def scalar(value: object) -> object:
    """The Python number of a numpy scalar or a 0-dimensional array or tensor; any other value unchanged."""
    if getattr(value, "ndim", None) != 0 or not callable(item := getattr(value, "item", None)):
        return value
    try:
        with calling_user_code("item"):
            found: object = item()
    except UserCodeError:
        return value
    return found


def finite(value: object) -> float | None:
    """A real number as a float; None for anything else, for infinities, and for numbers too large for a float."""
    value = scalar(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        with calling_user_code("float"):
            number = float(value)
    except UserCodeError:
        return None
    return number if math.isfinite(number) else None
