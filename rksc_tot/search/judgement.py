"""What a task makes of a text. Whatever the task raises here turns that one text away and nothing else."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from rksc_tot.errors import TaskError
from rksc_tot.task import Path, Reject, Task, Thought


@dataclass(frozen=True, slots=True)
class Judgement:
    """A thought the task accepts: whether it completes its path, and the key of the state it leads to."""

    thought: Thought
    finished: bool
    key: Hashable | None


def judge(task: Task, problem: Any, path: Path, text: str) -> Judgement | str:
    """The judgement on a text written after ``path``, or the reason why it is turned away."""
    try:
        thought: object = task.parse(problem, path, text)
    except Reject as reason:
        return str(reason) or "rejected"
    except Exception as error:
        return f"parse raised {named(error)}"
    if not isinstance(thought, Thought):
        return f"parse returned {thought!r}, not a Thought"
    return _follow(task, problem, Path((*path, thought)), thought)


def judge_root(task: Task, problem: Any) -> Judgement:
    """The judgement on the empty path.

    Raises
    ------
    TaskError
        If the task raises: without a root there is no search.
    """
    found = _follow(task, problem, Path(), Thought(""))
    if isinstance(found, str):
        raise TaskError(f"{found} at the root for {shown(problem)}", hint="check_task says more")
    return found


def _follow(task: Task, problem: Any, path: Path, thought: Thought) -> Judgement | str:
    asked = "is_solution"
    try:
        finished = bool(task.is_solution(problem, path))
        asked = "state_key"
        key = task.state_key(problem, path)
        hash(key)
    except NotImplementedError:
        return f"{asked} is missing"
    except Exception as error:
        return f"{asked} raised {named(error)}"
    return Judgement(thought, finished, key)


def named(error: BaseException) -> str:
    """An exception in one phrase, such as ``ValueError: no such step``."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def shown(value: object, longest: int = 80) -> str:
    """A value for a message, cut to ``longest`` characters."""
    text = repr(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"
