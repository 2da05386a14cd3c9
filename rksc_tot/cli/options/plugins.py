"""Plug-ins as options of the command line, such as ``likelihood:of=path`` or ``prm:FOLDER``."""

from __future__ import annotations

from typing import TypeVar

from rksc_tot.cli.options.arguments import importable_here
from rksc_tot.core.plugins.one_line import read_plug_in
from rksc_tot.core.plugins.registry import Registry

T = TypeVar("T")
FORM = "NAME[:K=V,…]"


def plug_in(registry: Registry[T], option: str, text: str, example: str) -> T:
    """The plug-in of an option's value; it may be one of the current folder. Raises ConfigError.

    ``example``: part of the hint if the text is malformed.
    """
    importable_here(text)
    return read_plug_in(registry, option, text, example)
