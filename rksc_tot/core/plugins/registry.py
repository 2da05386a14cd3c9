"""Plug-ins by name: the built-in ones, and those of installed packages through an entry-point group."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from rksc_tot.core.errors import ConfigError, RkscTotError
from rksc_tot.core.plugins.nearest import did_you_mean
from rksc_tot.core.plugins.settings import sentence
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, error_text

T = TypeVar("T")


@dataclass(frozen=True)
class Registry(Generic[T]):
    """All plug-ins of one kind.

    Parameters
    ----------
    kind : str
        Their name in messages, such as ``strategy``.
    base : type
        The type of a plug-in, or of the objects that it makes when called.
    group : str
        The entry-point group of installed packages.
    built_in : Mapping[str, str]
        Maps names to ``module:attribute``, which is imported on use.
    function_hint : str
        What to do, for the error message, if the name leads to a function that returns no plug-in.
    unnamed : Mapping[str, str]
        By plug-in, the setting that a command line gives without its name, as in ``prm:FOLDER``.

    Methods take the name of a built-in or installed plug-in, or ``module:attribute`` for one that can be imported.
    """

    kind: str
    base: type[T]
    group: str
    built_in: Mapping[str, str]
    function_hint: str = ""
    unnamed: Mapping[str, str] = field(default_factory=dict)

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._found())

    def home(self, name: str) -> tuple[str, str] | None:
        """Module and attribute of the plug-in of that name, without importing it; None if there is none."""
        point = self._found().get(name)
        if point is None and _is_own(name):
            point = EntryPoint(name, name, self.group)
        module, _, attribute = (point.value if point else "").partition("[")[0].strip().partition(":")
        return (module, attribute) if attribute else None

    def make(self, name: str, /, **options: Any) -> T:
        """Make the plug-in of that name with these options.

        Raises
        ------
        ConfigError
            If the name is unknown, the plug-in cannot be imported or made, or an option is unknown or out of range.
        """
        plug_in = self._load(name)
        hint = (inspect.isroutine(plug_in) and self.function_hint) or f"correct {self._origin(name)}"
        try:
            with calling_user_code(name, RkscTotError, ValidationError):
                made = _made(plug_in, options)
        except ValidationError as error:
            raise ConfigError(f"{self.kind} {name!r}: {sentence(error)}") from None
        except UserCodeError as raised:
            raise ConfigError(
                f"{self.kind} {name!r} cannot be made: {error_text(raised.error)}", hint=hint
            ) from raised.error
        if not isinstance(made, self.base):
            wanted = self.base.__name__
            raise ConfigError(f"{self.kind} {name!r} is {type(made).__name__}, not a {wanted}", hint=hint)
        return made

    def example(self, name: str) -> T:
        """The plug-in of that name with its defaults, and a placeholder for a setting that must be given."""
        unnamed = self.unnamed.get(name)
        try:
            return self.make(name)
        except ConfigError:
            if unnamed is None:
                raise
        return self.make(name, **{unnamed: unnamed.upper()})

    def summary(self, name: str) -> str:
        """The first line of a plug-in's docstring, or of its function's. Raises the errors of :meth:`make`."""
        plug_in = self._load(name)
        self.example(name)
        documented = plug_in
        if isinstance(plug_in, self.base):
            documented = getattr(plug_in, "function", type(plug_in))
        return (inspect.getdoc(documented) or "").partition("\n")[0]

    def _found(self) -> dict[str, EntryPoint]:
        installed = {point.name: point for point in entry_points(group=self.group)}
        return installed | {name: self._point(name) for name in self.built_in}

    def _point(self, name: str) -> EntryPoint:
        return EntryPoint(name, self.built_in[name], self.group)

    def _load(self, name: str) -> Any:
        point = self._point(name) if name in self.built_in else self._found().get(name)
        if point is None and _is_own(name):
            point = EntryPoint(name, name, self.group)
        if point is None:
            known = ", ".join(self.names())
            raise ConfigError(
                f"there is no {self.kind} {name!r}",
                hint=self._settings_hint(name)
                or did_you_mean(name, self.names()) + f"there are {known}; name your own as module:attribute",
            )
        try:
            with calling_user_code(name):
                return point.load()
        except UserCodeError as raised:
            raise ConfigError(
                f"{self.kind} {name!r} cannot be imported: {error_text(raised.error)}",
                hint="check module and attribute" if _is_own(name) else "reinstall the package it is in",
            ) from raised.error

    def _settings_hint(self, name: str) -> str:
        """What to write for a name with settings, as the command line takes it; empty if it is none."""
        home = self.home(name.partition(":")[0]) if ":" in name else None
        return "" if home is None else f"in Python give an object: from {home[0]} import {home[1]}, then {home[1]}(…)"

    def _origin(self, name: str) -> str:
        return f"{name} in its module" if _is_own(name) else f"the object that its {self.group} entry point names"


def _is_own(name: str) -> bool:
    """Whether a name is ``module:attribute``."""
    return all(part.isidentifier() for side in name.split(":") for part in side.split(".")) and name.count(":") == 1


def _made(plug_in: Any, options: Mapping[str, Any]) -> Any:
    """Call a class or function with the options; copy an object with the options, if there are any."""
    if callable(plug_in) and not isinstance(plug_in, BaseModel):
        return plug_in(**options)
    if not options:
        return plug_in
    if not isinstance(plug_in, BaseModel):
        raise ConfigError(f"{type(plug_in).__name__} takes no settings", hint=f"leave out {', '.join(options)}")
    return type(plug_in)(**{**dict(plug_in), **options})
