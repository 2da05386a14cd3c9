"""Functions named as ``module:function``, on the command line and in config files."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code

NAME = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")


def named_function(what: str, name: str) -> Callable[..., Any] | None:
    """The function of a name such as ``my_module:my_function``; None if the text is no such name.

    Raises
    ------
    ConfigError
        If there is no such module or function.
    """
    found = NAME.fullmatch(name)
    if found is None:
        return None
    try:
        with calling_user_code(name):
            function: object = getattr(import_module(found[1]), found[2])
    except UserCodeError as raised:
        raise ConfigError(
            f"{what} {name!r} cannot be imported: {raised}", hint="check module and function"
        ) from raised.error
    if not callable(function):
        raise ConfigError(f"{what} {name!r} is {type(function).__name__}", hint="name a function")
    return function
