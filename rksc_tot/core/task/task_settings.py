"""The settings of a task by name: tasks from functions, and what is wrong with a setting or a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.nearest import did_you_mean
from rksc_tot.core.plugins.user_code import finite, plain_str, shown
from rksc_tot.core.task.boundary import Boundary
from rksc_tot.core.task.chat_or_text import ChatOrText
from rksc_tot.core.task.constraint import Constraint
from rksc_tot.core.task.sampling import Sampling
from rksc_tot.core.task.task import Path, Prompt, Task
from rksc_tot.core.task.thinking import Thinking


def function_task(
    *,
    prompt: Callable[[Any], Prompt],
    is_solution: Callable[[Any, Path], bool],
    **options: Any,
) -> Task:
    """A task from functions: any method or setting of :class:`Task` may be given by its name.

    Raises
    ------
    ConfigError
        If an option is not a method or setting of :class:`Task`, or a setting is invalid.
    """
    task = Task()
    set_options(task, {"prompt": prompt, "is_solution": is_solution, **options})
    return task


def set_options(task: Task, options: Mapping[str, Any]) -> None:
    """Replace methods and settings of a task by name.

    Raises
    ------
    ConfigError
        If an option is not a method or setting of :class:`Task`, or a setting is invalid.
    """
    for name, value in options.items():
        if name.startswith("_") or not hasattr(Task, name):
            known = [known for known in vars(Task) if not known.startswith("_")]
            raise ConfigError(f"a task has no {name!r}", hint=f"{did_you_mean(name, known)}it has {', '.join(known)}")
        setattr(task, name, value)
    for name, wrong in setting_faults(task):
        if name in options:
            raise ConfigError(wrong)


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
