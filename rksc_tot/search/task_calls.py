"""Every call of a task about a thought or an answer. An error that the task raises rejects one text and nothing else."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

from rksc_tot.core.errors import RkscTotError, TaskError
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, named, said, shown
from rksc_tot.core.task import Path, Prompt, Reject, Task, Thought, ThoughtFinish
from rksc_tot.search.validation import Fault, problem_fault, prompt_fault, scalar, setting_faults, text_fault

HINT = "check_task says more"
ENDED = "the model ended its text here"
END = Thought("", finish="eos")
"""What stands in the tree for a model that wrote only the end of its text."""


@dataclass(frozen=True, slots=True)
class AcceptedThought:
    """A thought that the task accepts.

    ``path``: the thoughts with it. ``finished``: whether that path is complete. ``key``: of the state it leads to.
    """

    thought: Thought
    path: Path
    finished: bool
    key: Hashable | None


def accept_thought(
    task: Task, problem: Any, path: Path, text: str, finish: ThoughtFinish = "stop"
) -> AcceptedThought | str:
    """A text written after ``path`` as a thought, or the reason why it is rejected (a Fault: the task failed)."""
    ended = finish == "eos" and not text.strip()
    if ended and path and task.end_completes:
        return AcceptedThought(END, Path((*path[:-1], replace(path[-1], finish="eos"))), True, None)
    try:
        with calling_user_code("parse", Reject):
            thought: Any = task.parse(problem, path, text)
    except Reject as reason:
        return ENDED if ended else said(reason) or "rejected"
    except UserCodeError as raised:
        return Fault(raised)
    if fault := thought_fault(thought):
        return Fault(f"parse returned {shown(thought)}, {fault}")
    if fault := text_fault(thought.text):
        return f"the thought {fault}"
    try:
        with calling_user_code("the class of its thoughts"):
            thought = thought if thought.finish == finish else replace(thought, finish=finish)
    except UserCodeError as raised:
        return Fault(raised)
    return _follow(task, problem, Path((*path, thought)), thought)


def thought_fault(thought: object) -> str | None:
    """What is wrong with what ``parse`` returned, as the end of a sentence, or None."""
    if not isinstance(thought, Thought):
        return "not a Thought"
    text: object = thought.text
    return None if isinstance(text, str) else "not a Thought with a text"


def accept_root(task: Task, problem: Any) -> tuple[Prompt, AcceptedThought]:
    """The prompt and the judgement on the empty path.

    Raises
    ------
    TaskError
        If the task raises, a setting is wrong, or there is nothing to search: without a root there is no search.
    """
    for _, wrong in setting_faults(task):
        raise TaskError(wrong, hint=HINT)
    if unfit := problem_fault(problem):
        raise TaskError(f"the problem {shown(problem)} {unfit}") from unfit.error
    try:
        with calling_user_code("prompt", RkscTotError):
            prompt: Prompt = task.prompt(problem)
    except UserCodeError as raised:
        raise TaskError(f"{raised} for {shown(problem)}", hint=HINT) from raised.error
    if fault := prompt_fault(prompt):
        raise TaskError(f"the prompt for {shown(problem)} {fault}", hint=HINT)
    found = _follow(task, problem, Path(), Thought(""))
    if isinstance(found, Fault):
        raise TaskError(f"{found} at the root for {shown(problem)}", hint=HINT) from found.error
    if found.finished:
        raise TaskError(
            f"is_solution calls the empty path a solution of {shown(problem)}", hint="there is nothing to search then"
        )
    return prompt, found


def validated(task: Task, problem: Any) -> Any:
    """The problem in the task's own form.

    Raises
    ------
    TaskError
        If it does not fit the task.
    """
    try:
        with calling_user_code("validate", RkscTotError):
            return task.validate(problem)
    except UserCodeError as raised:
        raise TaskError(f"{shown(problem)} does not fit the task: {named(raised.error)}", hint=HINT) from raised.error


def read_answer(task: Task, problem: Any, path: Path) -> tuple[str | None, str]:
    """The answer of a complete path; None and the reason (a Fault: the task failed) where none can be read."""
    try:
        with calling_user_code("answer"):
            answer: object = task.answer(problem, path)
            text = None if answer is None else str(answer)
    except UserCodeError as raised:
        return None, Fault(raised)
    if text is None:
        return None, "answer returned None"
    if fault := text_fault(text):
        return None, Fault(f"answer {said(text)} {fault}")
    return text, ""


def vote_of(task: Task, answer: str) -> Hashable:
    """What an answer counts as in a vote, or how the task failed on it."""
    try:
        with calling_user_code("normalise"):
            vote: Hashable = task.normalise(answer)
            hash(vote)
    except UserCodeError as raised:
        return Fault(raised)
    return vote


def read_verdict(task: Task, problem: Any, answer: str) -> tuple[bool | None, Fault | None]:
    """Whether ``check`` accepts an answer, None where it cannot tell or failed, and how it failed."""
    try:
        with calling_user_code("check"):
            correct = scalar(task.check(problem, answer))
    except UserCodeError as raised:
        return None, Fault(raised)
    if correct is None or isinstance(correct, bool):
        return correct, None
    return None, Fault(f"check returned {shown(correct)}, not True, False or None,")


def _follow(task: Task, problem: Any, path: Path, thought: Thought) -> AcceptedThought | Fault:
    try:
        with calling_user_code("is_solution"):
            finished = bool(task.is_solution(problem, path)) or (thought.finish == "eos" and task.end_completes)
        with calling_user_code("state_key"):
            key = task.state_key(problem, path)
            hash(key)
    except UserCodeError as raised:
        return Fault(raised)
    return AcceptedThought(thought, path, finished, key)
