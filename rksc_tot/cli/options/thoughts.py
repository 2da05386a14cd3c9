"""Options of how thoughts are written: thinking before them, and the form that they must have."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.user_code import shown

if TYPE_CHECKING:
    from rksc_tot.core.task import Constraint, Task

FORMS = "regex:PATTERN, json_schema:FILE or grammar:FILE"


@dataclass(frozen=True)
class ThoughtOptions:
    """How thoughts are written (default: as the task says)."""

    thinking: Annotated[
        int | None,
        typer.Option(help="Let the model think before each thought, in blocks of at most this many tokens."),
    ] = None
    thinking_markers: Annotated[
        str | None,
        typer.Option(
            metavar="OPEN,CLOSE",
            help='What opens and closes a thinking block, such as "<think>,</think>". Default: as the model says.',
        ),
    ] = None
    constraint: Annotated[
        str | None, typer.Option(metavar="KIND:VALUE", help=f"The form that every thought must have: {FORMS}.")
    ] = None

    def adapted(self, task: Task) -> Task:
        """The task with these options. Raises ConfigError if one is invalid."""
        thinking = self._thinking()
        if not thinking and self.constraint is None:
            return task
        changed = copy(task)
        if thinking:
            from rksc_tot.core.task import Thinking

            if self.thinking is None and task.thinking is None:
                raise ConfigError("--thinking-markers is given without --thinking", hint="add --thinking 512, say")
            changed.thinking = Thinking(**({} if task.thinking is None else dict(task.thinking)) | thinking)
        if self.constraint is not None:
            changed.constraint = read_constraint(self.constraint)
        return changed

    def _thinking(self) -> dict[str, Any]:
        """The settings of thinking that are given."""
        settings: dict[str, Any] = {} if self.thinking is None else {"budget": self.thinking}
        if self.thinking_markers is not None:
            markers = tuple(self.thinking_markers.split(","))
            if len(markers) not in (2, 3):
                hint = 'write two texts, such as "<think>,</think>"'
                raise ConfigError(f"--thinking-markers is {shown(self.thinking_markers)}", hint=hint)
            settings["markers"] = markers
        return settings

    def describe(self, task: Task) -> dict[str, Any]:
        """What results depend on of these options. ``task``: as :meth:`adapted` returned it."""
        thinking = {} if task.thinking is None else {"thinking": task.thinking.describe()}
        if self.constraint is None:
            return thinking
        constraint = read_constraint(self.constraint)
        return {**thinking, "constraint": {"kind": constraint.kind, "source": constraint.source}}


def read_constraint(text: str) -> Constraint:
    """The constraint of an option: ``regex:PATTERN``, ``json_schema:FILE`` or ``grammar:FILE``.

    Raises
    ------
    ConfigError
        If there is no such kind, or the file cannot be read.
    ConstraintError
        If the file is not a JSON schema.
    """
    from rksc_tot.core.task.constraint import grammar, json_schema, regex

    kind, _, value = text.partition(":")
    makers = {"regex": regex, "json_schema": json_schema, "grammar": grammar}
    if kind not in makers or not value:
        raise ConfigError(f"--constraint is {shown(text)}", hint=f"write {FORMS}")
    return regex(value) if kind == "regex" else makers[kind](_content(value))


def _content(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the constraint {file!r} cannot be read: {reason or error}") from None
