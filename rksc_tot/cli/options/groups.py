"""Groups of options: a command takes a frozen dataclass as one argument, and each field is an option.

In the help each class is a panel. The first line of its docstring is the title.
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
    """Decorate a command for typer: replace each dataclass argument by its fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    @wraps(command)
    def spread(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    parameters = [
        expanded
        for own in inspect.signature(command).parameters.values()
        for expanded in _expanded(own, hints[own.name])
    ]
    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return spread


def _expanded(parameter: inspect.Parameter, hint: Any) -> Iterator[inspect.Parameter]:
    """The parameters that replace one parameter of a command."""
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
    """The annotation with its option in the help panel ``title``."""
    kind, *notes = get_args(annotation)
    placed = [copy(note) for note in notes]
    for note in placed:
        if isinstance(note, OptionInfo):
            note.rich_help_panel = title
    return Annotated[(kind, *placed)]
