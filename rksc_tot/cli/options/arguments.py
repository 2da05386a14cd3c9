"""Options of several commands."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from rksc_tot.core.plugins.strict_json import parse_strictly

Seed = Annotated[int, typer.Option(help="Seed of all random draws.")]
TaskName = Annotated[
    str, typer.Argument(help="A name from `rksc-tot tasks`, your own as module:attribute, or rows:FILE with --prompt.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, and nothing else, to stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

QUOTES = 'put a problem of several words in quotes, such as "4 5 6 10"'


class TaskCommand(TyperCommand):
    """A command on a task, whose settings are no options of their own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add a hint to errors about a setting of the task that was written as an option."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if type(error).__name__ == "NoSuchOption":  # typer does not export the classes of its errors
                from rksc_tot.core.task import Task

                setting = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
                if hasattr(Task, setting):
                    error.message += f". For a task rows:FILE write --task-set {setting}=…"  # type: ignore[attr-defined]
            raise


class ProblemCommand(TaskCommand):
    """A command whose arguments are problems, which may begin with a minus or consist of several words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add a hint to errors about a problem that was parsed as an option or as several arguments."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if hasattr(error, "message"):  # typer does not export the classes of its errors
                if type(error).__name__ == "NoSuchOption":
                    error.message += ". Put a problem that begins with - last, after --."
                elif "extra argument" in error.message:
                    error.message += f" - {QUOTES}"
            raise


def importable_here(*names: str | None) -> None:
    """Append the current folder to ``sys.path`` if one of the names is ``module:attribute``."""
    if any(name and ":" in name for name in names) and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def problem_of(text: str) -> Any:
    """The problem of an argument: a JSON object, list or string, else the text itself."""
    if text.lstrip()[:1] in ("{", "[", '"'):
        try:
            return parse_strictly(text)
        except ValueError:
            return text
    return text
