"""Options that several commands share: fields of a frozen dataclass, which a command takes as one argument.

In the help each class is a panel of its own; the first line of its docstring is the title.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_args, get_type_hints

from typer.models import OptionInfo


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer reads it: each argument that is a dataclass replaced by the fields of it."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    @wraps(command)
    def spread(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    parameters = [
        spot for own in inspect.signature(command).parameters.values() for spot in _spots(own, hints[own.name])
    ]
    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {spot.name: spot.annotation for spot in parameters}
    return spread


def _spots(parameter: inspect.Parameter, hint: Any) -> Iterator[inspect.Parameter]:
    """The parameters in place of one of a command."""
    if not (isinstance(hint, type) and is_dataclass(hint)):
        yield parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)
        return
    of_fields = get_type_hints(hint, include_extras=True)
    for field in fields(hint):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        annotation = _in_panel(of_fields[field.name], _title(hint, field.name))
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _title(group: type, field: str) -> str:
    """The first line of the docstring of the class that declares a field."""
    home = next(base for base in group.__mro__ if field in inspect.get_annotations(base))
    return (inspect.getdoc(home) or "").partition("\n")[0].removesuffix(".")


def _in_panel(annotation: Any, title: str) -> Any:
    """The annotation of an option that stands under ``title`` in the help."""
    kind, *notes = get_args(annotation)
    placed = [copy(note) for note in notes]
    for note in placed:
        if isinstance(note, OptionInfo):
            note.rich_help_panel = title
    return Annotated[(kind, *placed)]
