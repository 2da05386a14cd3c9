"""Calls of a task's methods. An error of the task rejects one text; it does not end the search."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rksc_tot.core.errors import RkscTotError, TaskError
from rksc_tot.core.plugins.user_code import (
    UserCodeError,
    calling_user_code,
    error_text,
    plain_str,
    scalar,
    shown,
    text_of,
)
from rksc_tot.core.task import Constraint, Path, Prompt, Reject, Task, Thought, ThoughtFinish
from rksc_tot.core.task.end_of_thought import boundary_of
from rksc_tot.core.task.problem import own_copy
from rksc_tot.core.task.task_settings import plain_prompt, prompt_fault, setting_faults, text_fault
from rksc_tot.search.validation import Fault, closing_fault, problem_fault

HINT = "run check_task for details"
ENDED = "the model ended its text here"
END = Thought("", finish="eos")
"""The thought of a node whose model wrote only the end of its text."""


class Around(NamedTuple):
    """What is on the path before and after the text of a thought, as in :class:`~rksc_tot.core.task.Thought`."""

    lead: str
    ending: str


@dataclass(frozen=True, slots=True)
class AcceptedThought:
    """A thought that the task accepts.

    * ``path``: the path with this thought. ``key``: its state key.
    * ``finished``: whether the path is complete. ``ended``: whether it ended without an answer, so that it needs a closing.
    """

    thought: Thought
    path: Path
    finished: bool
    key: Hashable | None
    ended: bool = False

    @property
    def over(self) -> bool:
        """Whether the path gets no more thoughts."""
        return self.finished or self.ended


def accept_thought(
    task: Task, problem: Any, path: Path, text: str, finish: ThoughtFinish = "stop", around: Around | None = None
) -> AcceptedThought | str:
    """Parse and judge a text that follows ``path``. Returns the thought, or why it is rejected (a Fault if the task failed)."""
    thought = parse_thought(task, problem, path, text, finish, around)
    return thought if isinstance(thought, str) else follow_thought(task, problem, path, thought)


def parse_thought(
    task: Task, problem: Any, path: Path, text: str, finish: ThoughtFinish, around: Around | None = None
) -> Thought | str:
    """The thought of a text that follows ``path``, or why it is rejected (a Fault if the task failed).

    The thought is ``END`` if the model only ended its text and that completes the path. ``around``: what the engine put
    on the path around the text; None: not known.
    """
    ended = finish == "eos" and not text.strip()
    if ended and path and task.end_completes:
        return END
    try:
        with calling_user_code("parse", Reject):
            thought: Any = task.parse(problem, path, text)
    except Reject as reason:
        return ENDED if ended else text_of(reason) or "rejected"
    except UserCodeError as raised:
        return Fault(raised)
    if fault := thought_fault(thought):
        return Fault(f"parse returned {shown(thought)}, {fault}")
    try:
        with calling_user_code("the class of its thoughts"):
            on_path = _around(task, path, plain_str(thought.text), text, around)
            known = type(thought.text) is str and (thought.finish, thought.lead, thought.ending) == (finish, *on_path)
            accepted: Thought = (
                thought if known else replace(thought, text=plain_str(thought.text), finish=finish, **on_path._asdict())
            )
    except UserCodeError as raised:
        return Fault(raised)
    fault = text_fault(accepted.text)
    return accepted if fault is None else f"the thought {fault}"


def _around(task: Task, path: Path, thought: str, text: str, around: Around | None) -> Around:
    """What is on the path around a thought that the task made of ``text``.

    Blank lines at its beginning count only if the thought before has no ending, as after a limit.
    """
    between = boundary_of(task).ending
    if around is None or thought.strip() != text.strip():
        return Around("", between)
    if between or thought not in text:
        return Around("" if not path or path[-1].ending else around.lead, around.ending)
    before, _, after = text.partition(thought)
    return Around(around.lead + before, after + around.ending)


def follow_thought(task: Task, problem: Any, path: Path, thought: Thought) -> AcceptedThought | Fault:
    """Whether a path is complete with this thought, and its state key; a Fault if the task failed."""
    if thought is END:
        return AcceptedThought(END, Path((*path[:-1], replace(path[-1], finish="eos"))), True, None)
    return _follow(task, problem, Path((*path, thought)), thought)


def thought_fault(thought: object) -> str | None:
    """Why the return value of ``parse`` is invalid, such as ``not a Thought``; None if it is valid."""
    if not isinstance(thought, Thought):
        return "not a Thought"
    text: object = thought.text
    return None if isinstance(text, str) else "not a Thought with a text"


def accept_root(task: Task, problem: Any) -> tuple[Prompt, AcceptedThought]:
    """The prompt of a problem, and the empty path with its state key.

    Raises
    ------
    TaskError
        If the task raises, a setting is invalid, or the empty path is already a solution.
    """
    for _, wrong in setting_faults(task):
        raise TaskError(wrong, hint=HINT)
    if fault := problem_fault(problem):
        raise TaskError(f"the problem {shown(problem)} {fault}") from fault.error
    try:
        with calling_user_code("prompt", RkscTotError):
            prompt: Prompt = task.prompt(problem)
    except UserCodeError as raised:
        raise TaskError(f"{raised} for {shown(problem)}", hint=HINT) from raised.error
    if wrong_prompt := prompt_fault(prompt) or closing_fault(task.closing, prompt):
        raise TaskError(f"the prompt for {shown(problem)} {wrong_prompt}", hint=HINT)
    found = _follow(task, problem, Path(), Thought(""))
    if isinstance(found, Fault):
        raise TaskError(f"{found} at the root for {shown(problem)}", hint=HINT) from found.error
    if found.finished:
        raise TaskError(
            f"is_solution is True for the empty path of {shown(problem)}", hint="return False while the path is empty"
        )
    return plain_prompt(prompt), found


def validated(task: Task, problem: Any) -> Any:
    """The problem as ``task.validate`` returns it, with dicts and lists of its own.

    Raises
    ------
    TaskError
        If the task refuses the problem.
    """
    try:
        with calling_user_code("validate", RkscTotError):
            return own_copy(task.validate(own_copy(problem)))
    except UserCodeError as raised:
        raise TaskError(
            f"{shown(problem)} does not fit the task: {error_text(raised.error)}", hint=HINT
        ) from raised.error


def constraint_of(task: Task, problem: Any, path: Path) -> Constraint | Fault | None:
    """The constraint of the thoughts after ``path``, None without one, or a Fault if the task failed."""
    constraint: object = task.constraint
    if callable(constraint):
        try:
            with calling_user_code("constraint"):
                constraint = constraint(problem, path)
        except UserCodeError as raised:
            return Fault(raised)
    if constraint is None or isinstance(constraint, Constraint):
        return constraint
    return Fault(f"constraint returned {shown(constraint)}, not a Constraint or None")


def read_answer(task: Task, problem: Any, path: Path) -> tuple[str | None, str]:
    """The answer of a complete path and an empty string; or None and the reason (a Fault if the task failed)."""
    try:
        with calling_user_code("answer"):
            answer: object = task.answer(problem, path)
            text = None if answer is None else plain_str(answer)
    except UserCodeError as raised:
        return None, Fault(raised)
    if text is None:
        return None, "answer returned None"
    if fault := text_fault(text):
        return None, Fault(f"answer {text_of(text)} {fault}")
    return text, ""


def vote_of(task: Task, answer: str) -> Hashable:
    """An answer after ``task.normalise``, or a Fault if the task failed."""
    try:
        with calling_user_code("normalise"):
            vote: Hashable = task.normalise(answer)
            hash(vote)
    except UserCodeError as raised:
        return Fault(raised)
    return vote


def read_verdict(task: Task, problem: Any, answer: str) -> tuple[bool | None, Fault | None]:
    """The result of ``task.check`` on an answer, None if it cannot tell or failed; and the Fault if it failed."""
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
