"""Findings of ``check_task``, and calls of a task's methods that turn errors into findings."""

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
    """One finding of :func:`~rksc_tot.check_task`.

    * ``level``: ``ok``; ``missing`` if something optional is absent or could not be checked; ``error`` if a search would fail
      or warn.
    * ``what``: the name of the method or setting.
    * ``message``: one sentence.
    * ``texts``: what the model wrote, if the finding is about that.
    """

    level: Level
    what: str
    message: str
    texts: tuple[str, ...] = ()


class Findings:
    """Calls methods of a task and collects the findings."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.findings: list[Finding] = []

    def report(self, level: Level, what: str, message: str, texts: tuple[str, ...] = ()) -> None:
        """Add a finding."""
        self.findings.append(Finding(level, what, message, texts))

    @property
    def erred(self) -> bool:
        """Whether any finding so far is an error."""
        return any(found.level == "error" for found in self.findings)

    def failed(self, what: str) -> bool:
        """Whether a method has a finding other than ``ok``."""
        return any(found.what == what and found.level != "ok" for found in self.findings)

    def call(self, what: str, *args: Any) -> Any:
        """Call a method. Returns its value; if it raises, adds a finding and returns None."""
        method: Callable[..., Any] = getattr(self.task, what)
        try:
            with calling_user_code(what, RkscTotError):
                return method(*args)
        except RkscTotError as error:
            self.report("error", what, str(error))
        except UserCodeError as raised:
            if isinstance(raised.error, NotImplementedError):
                self.report("missing", what, f"a task needs the method {what}: write it")
            else:
                self.report("error", what, f"{raised} on {shown(args[0])}")
        return None


def thoughts(number: int) -> str:
    """A number of thoughts in words, such as ``1 thought``."""
    return f"{number} thought{'' if number == 1 else 's'}"
