"""Base of frozen settings, with validation errors on one line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.nearest import did_you_mean
from rksc_tot.core.plugins.user_code import shown, text_of


class Settings(BaseModel):
    """Base of frozen settings. ``kind``: the name of such objects in messages, such as ``strategy``.

    Raises
    ------
    ConfigError
        If a value is out of range or a setting is unknown. The message has the setting, the value and the range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    kind: ClassVar[str] = ""

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            for fault in error.errors(include_url=False):
                raised = fault.get("ctx", {}).get("error")
                if isinstance(raised, ConfigError):  # raised by a validator, with its own message
                    raise raised from None
            fields = type(self).model_fields
            unknown = [str(fault["loc"][0]) for fault in error.errors() if fault["type"] == "extra_forbidden"]
            near = did_you_mean(unknown[0], fields) if unknown else ""
            hint = f"{near}its settings are {', '.join(fields)}" if fields else "it has no settings"
            raise ConfigError(f"{self._called(values)}: {sentence(error)}", hint=hint) from None

    if not TYPE_CHECKING:  # with __setattr__, mypy would allow any attribute

        def __setattr__(self, name: str, value: object) -> None:
            try:
                super().__setattr__(name, value)
            except ValidationError:
                called = type(self).__name__
                hint = f"make another one with {called}({name}=...)"
                if name not in type(self).model_fields:  # usually in the __init__ of a plug-in
                    field = f"{name}: {type(value).__name__} = {shown(value)}"
                    hint = f"settings are annotated fields of the class, such as {field}, without an __init__"
                raise ConfigError(f"{called} is frozen, its {name} cannot be set", hint=hint) from None

    def describe(self) -> dict[str, Any]:
        """The name and all settings as JSON values; functions are their names, other objects the names of their types."""
        fields = {name: _plain(getattr(self, name)) for name in type(self).model_fields}
        return {"name": getattr(self, "name", "") or type(self).__name__, **fields}

    @classmethod
    def _called(cls, values: dict[str, Any]) -> str:
        field = cls.model_fields.get("name")
        name = values.get("name") or (field.default if field else getattr(cls, "name", ""))
        return f"{cls.kind} {name!r}" if name else cls.kind or cls.__name__


def _plain(value: object) -> Any:
    """A value as JSON values, the same in every process."""
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {text_of(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, float):
        return str(value)
    source = value if hasattr(value, "__qualname__") else type(value)
    return f"{source.__module__}:{source.__qualname__}"


def sentence(error: ValidationError) -> str:
    """A validation error on one line, with fields and values."""
    return "; ".join(map(_fault, error.errors(include_url=False)))


def _fault(fault: Any) -> str:
    field = ".".join(map(str, fault["loc"]))
    if fault["type"] == "extra_forbidden":
        return f"there is no setting {field!r}"
    if fault["type"] == "missing":
        return f"{field} must be given"
    if fault["type"] in ("tuple_type", "list_type") and isinstance(fault["input"], str):
        return f"{field}: should be a list, such as [1,0,1], not {shown(fault['input'])}"
    message = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Input ").partition(", unable to parse")[0]
    return f"{field}: {message}, not {shown(fault['input'])}" if field else message
