"""Options of tasks of rows: ``rows:FILE`` with a prompt, a form of answers and a reward."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rksc_tot.cli.options.arguments import importable_here
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.one_line import settings_of

if TYPE_CHECKING:
    from rksc_tot.core.task import Task

ROWS = "rows:"
"""The beginning of the name of a task of rows."""


@dataclass(frozen=True)
class RowsOptions:
    """Tasks of rows (rows:FILE)."""

    prompt: Annotated[
        str | None,
        typer.Option(
            help='The prompt, with fields of a row in braces, such as "{question}"; or a JSON list of messages.'
        ),
    ] = None
    answer: Annotated[
        str | None,
        typer.Option(
            help="Where a path says its answer: number (default), boxed, after:MARKER, choice, regex:PATTERN, json."
        ),
    ] = None
    reward: Annotated[
        str | None,
        typer.Option(
            help="When an answer is right: numeric, exact, math, choice, json, or your own as module:function."
        ),
    ] = None
    target: Annotated[str | None, typer.Option(help="The field with the right answer. Default: answer.")] = None
    target_answer: Annotated[
        str | None,
        typer.Option(help="Where that field says its answer, such as after:####. Default: it is the answer."),
    ] = None
    system: Annotated[str | None, typer.Option(help="The system prompt.")] = None
    examples: Annotated[str | None, typer.Option(help="A file of rows that are few-shot examples.")] = None
    example_reply: Annotated[
        str | None, typer.Option(help='The reply of an example, such as "{solution}". Default: the target.')
    ] = None
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat", help="Whether a text is the user's message. Default: if there is a chat template."
        ),
    ] = None
    task_settings: Annotated[
        list[str] | None,
        typer.Option(
            "--task-set",
            help="A setting of the task, such as thoughts=numbered or max_thoughts=6. May be given several times.",
        ),
    ] = None

    def load(self, name: str) -> Task:
        """The task of that name: ``rows:FILE``, an installed one, or ``module:attribute``.

        Raises
        ------
        ConfigError
            If there is no such task, or an option is missing, invalid, or not for this task.
        """
        from rksc_tot.tasks import load_task
        from rksc_tot.tasks.rows.task import rows_task

        if not name.startswith(ROWS):
            given = [field.name for field in fields(self) if getattr(self, field.name) not in (None, [])]
            if given:
                option = "--task-set" if given[0] == "task_settings" else f"--{given[0].replace('_', '-')}"
                raise ConfigError(
                    f"{option} is not for the task {name!r}", hint="name a task of rows, such as rows:FILE"
                )
            importable_here(name)
            return load_task(name)
        if self.prompt is None:
            raise ConfigError(f"{name!r} has no prompt", hint='add --prompt, such as --prompt "{question}"')
        importable_here(self.answer, self.reward)
        given_options: dict[str, Any] = {
            option: getattr(self, option)
            for option in ("reward", "system", "examples", "example_reply", "chat", "target_answer")
        }
        given_options |= {
            option: value for option in ("answer", "target") if (value := getattr(self, option)) is not None
        }
        return rows_task(
            name.removeprefix(ROWS),
            prompt=_prompt(self.prompt),
            **given_options,
            **settings_of(self.task_settings or [], "--task-set"),
        )


def _prompt(given: str) -> Any:
    """A prompt: a JSON list is a list of messages."""
    if given.lstrip().startswith("["):
        try:
            return json.loads(given)
        except ValueError:
            return given
    return given
