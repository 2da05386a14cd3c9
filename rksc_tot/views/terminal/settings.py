"""Lists the settings of strategies, verifiers, tasks and compression policies."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rksc_tot.api.setup import strategy_settings_of
from rksc_tot.core.task import Task

KINDS = {"int": "whole number", "float": "number", "str": "string", "bool": "true or false", "ArborFit": "file"}
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def setting_lines(plug_in: object, base: type) -> list[str]:
    """One line ``name=default  range: meaning`` per setting of a plug-in, without the settings of its class ``base``.

    For a task: one line per strategy in ``task.strategy_settings``.
    """
    if isinstance(plug_in, Task):
        return [
            f"{strategy}: {', '.join(f'{name}={value!r}' for name, value in strategy_settings_of(plug_in, strategy).items())}"
            for strategy in plug_in.strategy_settings
        ]
    if not isinstance(plug_in, BaseModel):
        return []
    fields = type(plug_in).model_fields
    common = base.model_fields if issubclass(base, BaseModel) else {}
    own = {name: getattr(plug_in, name) for name in fields if name not in common}
    return [
        f"{name}={_written(value)}  {_range(fields[name])}"
        for name, value in own.items()
        if all(
            one is None or isinstance(one, str | int | float) for one in _members(value)
        )  # others cannot be given as text
    ]


def _members(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def _written(value: object) -> str:
    """A value as the command line takes it, a string in quotes."""
    return json.dumps(value, separators=(",", ":")) if isinstance(value, tuple) else repr(value)


def _range(field: FieldInfo) -> str:
    found = [_kind(field.annotation)]
    for rule in field.metadata:
        found += [f"{word} {getattr(rule, bound)}" for bound, word in BOUNDS.items() if hasattr(rule, bound)]
    return ", ".join(found) + (f": {field.description}" if field.description else "")


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(map(str, get_args(annotation)))
    if get_origin(annotation) is tuple:
        return "list" if Ellipsis in get_args(annotation) else f"list of {len(get_args(annotation))}"
    parts = get_args(annotation) or (annotation,)
    return " or ".join(KINDS.get(part.__name__, part.__name__) for part in parts if part is not type(None))
