"""Tasks: the ``Task`` class that users derive from, its settings, and the thoughts and paths that its methods get."""

from rksc_tot.core.task.boundary import Boundary
from rksc_tot.core.task.chat_or_text import ChatOrText
from rksc_tot.core.task.constraint import Constraint, grammar, json_schema, regex
from rksc_tot.core.task.problem import Problem
from rksc_tot.core.task.task import (
    Message,
    Path,
    Prompt,
    Question,
    Reject,
    Task,
    Thought,
    ThoughtFinish,
)
from rksc_tot.core.task.task_settings import function_task
from rksc_tot.core.task.thinking import Markers, Thinking

__all__ = [
    "Boundary",
    "ChatOrText",
    "Constraint",
    "Markers",
    "Message",
    "Path",
    "Problem",
    "Prompt",
    "Question",
    "Reject",
    "Task",
    "Thinking",
    "Thought",
    "ThoughtFinish",
    "function_task",
    "grammar",
    "json_schema",
    "regex",
]
