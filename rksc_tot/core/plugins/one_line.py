"""Reads plug-ins that are written on one line: ``name`` or ``name:setting=value,setting=value``.

The first setting of some plug-ins needs no name: ``prm:FOLDER,aggregate=min``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, TypeVar

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.registry import Registry
from rksc_tot.core.plugins.user_code import shown

T = TypeVar("T")
PAIR = re.compile(r'\w+=(?:"(?:\\.|[^"\\])*"|,(?!\w+=)|[^,])*', re.DOTALL)
"""``setting=value``; a quoted value may contain any character."""


def read_plug_in(registry: Registry[T], option: str, text: str, example: str) -> T:
    """The plug-in of an option's value, made with its settings. Values of settings are parsed as JSON if possible.

    Raises
    ------
    ConfigError
        If the plug-in or a setting is unknown, or the text is malformed; ``example`` is part of the hint.
    """
    name, pairs = split(registry, option, text, example)
    return registry.make(name, **settings_of(pairs, option))


def split(registry: Registry[T], option: str, text: str, example: str) -> tuple[str, list[str]]:
    """Split an option's value into the name and the ``setting=value`` pairs. Raises ConfigError if it is malformed."""
    name, colon, settings = text.partition(":")
    if name not in registry.names() and not re.match(r"\w+=", settings):  # the user's own, module:attribute
        attribute, colon, settings = settings.partition(":")
        name = f"{name}:{attribute}" if attribute else name
    if (unnamed := registry.unnamed.get(name)) and settings and not re.match(r"\w+=", settings):
        settings = f"{unnamed}={settings}"
    pairs = PAIR.findall(settings)
    names = [pair.partition("=")[0] for pair in pairs]
    plain = ",".join(pairs) == settings and all(setting.isidentifier() for setting in names)
    if "=" in name or bool(colon) != bool(settings) or not plain:
        raise ConfigError(f"{option} is {shown(text)}", hint=f"write name or name:setting=value, such as {example}")
    if twice := [setting for setting in names if names.count(setting) > 1]:
        raise ConfigError(f"{option} is {shown(text)}, with {twice[0]} twice", hint="leave one of them out")
    return name, pairs


def settings_of(pairs: Sequence[str], option: str = "--set") -> dict[str, Any]:
    """``["k=16", "name=text"]`` as a dict. Values are parsed as JSON if possible, else they are strings.

    Raises
    ------
    ConfigError
        If one is not ``name=value``.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (equals and name.isidentifier()):
            raise ConfigError(f"{option} is {shown(pair)}", hint="write name=value, such as k=16")
        try:
            settings[name] = json.loads(value)
        except (ValueError, RecursionError):  # ValueError also for numbers with thousands of digits
            settings[name] = value
    return settings
