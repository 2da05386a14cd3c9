"""Where the thoughts of a task end: at a boundary, at a number of tokens, and whether a truncated one is kept."""

from __future__ import annotations

from rksc_tot.core.task.boundary import Boundary
from rksc_tot.core.task.task import Task


def boundary_of(task: Task) -> Boundary:
    """Where a thought of the task ends: by ``task.thoughts``, else by its stop strings.

    Raises
    ------
    ConfigError
        If ``task.thoughts`` is not a boundary.
    """
    if task.thoughts is None:
        return Boundary("stop", tuple(task.stop), keep_stop=task.keep_stop, skip_blank=task.skip_blank)
    return task.thoughts if isinstance(task.thoughts, Boundary) else Boundary.of(task.thoughts)


def most_tokens(task: Task) -> int:
    """The most tokens of a thought."""
    return boundary_of(task).tokens or task.max_thought_tokens


def accepts_truncated(task: Task) -> bool:
    """Whether a thought that a token limit cut off is kept."""
    return task.accept_truncated or boundary_of(task).tokens is not None
