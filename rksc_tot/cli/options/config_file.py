"""``--config FILE``: reads options of a command from a TOML file. Options on the command line override the file."""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import typer

from rksc_tot.cli.exits import one_sentence
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.nearest import did_you_mean
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.core.sizes import MOST

KINDS: dict[type, tuple[str, tuple[type, ...]]] = {
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    bool: ("true or false", (bool,)),
    str: ("a string", (str,)),
    Path: ("a string", (str,)),
}  # type of an option → (name of its values in messages, Python types of its values)


def read(ctx: typer.Context, file: Path | None) -> Path | None:
    """Make the options of a file the defaults of the command. On an error, end the program with a message."""
    if file is not None:
        with one_sentence():
            ctx.default_map = defaults_of(file, ctx.command)
    return file


Config = Annotated[
    Path | None,
    typer.Option(
        callback=read,
        is_eager=True,
        help="A TOML file with options of this command, without dashes. compress, verifier, set and task-set may be tables; "
        "contender and a prompt of messages may be lists of tables. "
        "Options on the command line come first.",
    ),
]


SIZES = ("kv-budget", "offload-budget", "max-kv")
"""Options that are sizes: strings such as ``64MiB``, or numbers of bytes."""


class ConfigOption(NamedTuple):
    """An option of a command.

    * ``parameter``: name of the command's parameter.
    * ``type``: type of one value. ``several``: whether the option takes a list.
    * ``least``: least number allowed, None without a limit.
    """

    parameter: str
    type: type
    several: bool
    least: float | None


def defaults_of(file: Path, command: Any) -> dict[str, Any]:
    """Read the options of a file: maps parameter names of the command to values.

    Raises
    ------
    ConfigError
        If the file cannot be read, or has an unknown option or an invalid value. The message names file and key.
    """
    options, found = options_of(command), dict[str, Any]()
    for key, value in _record(file).items():
        name = key.replace("_", "-")
        if name not in options:
            hint = f"{did_you_mean(name, options)}there are {', '.join(sorted(options))}"
            raise ConfigError(f"{str(file)!r}: {command.name} has no option {key!r}", hint=hint)
        option = options[name]
        if option.parameter in found:
            raise ConfigError(f"{str(file)!r} has {name!r} twice", hint="leave one of them out")
        found[option.parameter] = _value(f"{str(file)!r}: {key}", name, option, value)
    return found


def options_of(command: Any) -> dict[str, ConfigOption]:
    """The options that a config file may set, by name without dashes."""
    signature = inspect.signature(command.callback).parameters
    found: dict[str, ConfigOption] = {}
    for option in command.params:
        names = [name[2:] for name in option.opts if name.startswith("--")]
        if names and option.name in signature and names[0] != "config":
            kind, *notes = get_args(signature[option.name].annotation)
            if get_origin(kind) in (Union, UnionType):  # an optional value
                [kind] = {*get_args(kind)} - {NoneType}
            several = get_origin(kind) is list
            least = next((note.min for note in notes if getattr(note, "min", None) is not None), None)
            known = ConfigOption(option.name, get_args(kind)[0] if several else kind, several, least)
            found |= dict.fromkeys(names, known)
    return found


def _record(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{str(file)!r} cannot be read: {why}", hint="name a file in TOML") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, and numbers with thousands of digits
        raise ConfigError(
            f"{str(file)!r} is not TOML: {error}", hint='write lines such as kv-budget = "64MiB"'
        ) from None


def _value(what: str, name: str, option: ConfigOption, value: Any) -> Any:
    """Check a value and convert it to the form of the command line."""
    if isinstance(value, dict) and name in TABLES:
        return TABLES[name](what, value)
    if name in RECORDS and isinstance(value, list) and value and all(isinstance(record, dict) for record in value):
        return RECORDS[name](value)
    if name in SIZES and isinstance(value, int) and not isinstance(value, bool):
        return str(min(value, MOST))
    expected, kinds = KINDS[option.type]
    values = value if option.several and isinstance(value, list) else [value]
    if not all(isinstance(one, kinds) and isinstance(one, bool) == (option.type is bool) for one in values):
        more = ", or a list of them" * option.several + ", or a table" * (name in TABLES)
        more += ", or a whole number of bytes" * (name in SIZES)
        raise ConfigError(f"{what} is {shown(value)}", hint=f"give {expected}{more}")
    if option.least is not None and any(one < option.least for one in values):
        raise ConfigError(f"{what} is {shown(value)}", hint=f"give at least {option.least:g}")
    return values if option.several else value


def _named(what: str, table: Mapping[str, Any]) -> str:
    """``{name = "streaming", budget = 256}`` as ``streaming:budget=256``."""
    settings = dict(table)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        has = "no name" if name is None else f"the name {shown(name)}"
        raise ConfigError(
            f"{what} has {has}", hint='add a name, such as name = "streaming", or name = "likelihood" for a verifier'
        )
    if settings and "=" in name:
        raise ConfigError(f"{what} has the name {shown(name)}", hint="write each setting on a line of its own")
    return ":".join([name, ",".join(_pairs(what, settings))]) if settings else name


def _pairs(what: str, table: Mapping[str, Any]) -> list[str]:
    """``{k = 16}`` as ``["k=16"]``."""
    if odd := [key for key in table if not key.isidentifier()]:
        raise ConfigError(f"{what} has no setting {shown(odd[0])}", hint="use a name of letters, digits and _")
    try:
        return [f"{key}={json.dumps(value)}" for key, value in table.items()]
    except (TypeError, ValueError, RecursionError):
        raise ConfigError(
            f"{what} is {shown(dict(table))}", hint="give numbers, strings, lists, true or false"
        ) from None


TABLES: dict[str, Callable[[str, Mapping[str, Any]], Any]] = {
    "compress": _named, "set": _pairs, "task-set": _pairs, "verifier": _named,
}  # fmt: skip
RECORDS: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "contender": lambda records: [json.dumps(record) for record in records],
    "prompt": json.dumps,
}
"""Options that may be a list of tables."""
