"""What a check of a task found, and how its methods are called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rksc_tot.core.errors import RkscTotError
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, shown
from rksc_tot.core.task import Task

Level = Literal["ok", "missing", "error"]


@dataclass(frozen=True)
class Finding:
    """One thing that :func:`~rksc_tot.check_task` looked at.

    * ``level``: ``ok``; ``missing``, where something optional is absent or cannot be judged; ``error``, where a search would
      fail or warn.
    * ``what``: the method or setting.
    * ``message``: one sentence.
    """

    level: Level
    what: str
    message: str


class Findings:
    """Calls methods of a task, and collects what came of it."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.findings: list[Finding] = []

    def report(self, level: Level, what: str, message: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(level, what, message))

    @property
    def erred(self) -> bool:
        """Whether there is an error so far."""
        return any(found.level == "error" for found in self.findings)

    def failed(self, what: str) -> bool:
        """Whether something is wrong with a method."""
        return any(found.what == what and found.level != "ok" for found in self.findings)

    def call(self, what: str, *args: Any) -> Any:
        """The method's value, or None with a finding where it raises."""
        method: Callable[..., Any] = getattr(self.task, what)
        try:
            with calling_user_code(what, RkscTotError):
                return method(*args)
        except RkscTotError as error:
            self.report("error", what, str(error))
        except UserCodeError as raised:
            if isinstance(raised.error, NotImplementedError):
                self.report("missing", what, f"a task must have {what}: write it")
            else:
                self.report("error", what, f"{raised} on {shown(args[0])}")
        return None


def thoughts(number: int) -> str:
    """So many thoughts, in words."""
    return f"{number} thought{'' if number == 1 else 's'}"
