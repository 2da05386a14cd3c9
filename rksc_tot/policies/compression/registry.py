"""The compression policies by name. An installed package adds one through the entry-point group ``rksc_tot.compression``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.registry import Registry
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.policies.compression.base import CompressionPolicy

COMPRESSION_POLICIES: Registry[CompressionPolicy] = Registry(
    kind="compression policy",
    base=CompressionPolicy,  # type: ignore[type-abstract]  # only subclasses are instantiated
    group="rksc_tot.compression",
    built_in={
        "arborkv": "rksc_tot.policies.compression.arborkv:ArborKV",
        "random_attention": "rksc_tot.policies.compression.random_attention:RandomAttention",
        "snapkv": "rksc_tot.policies.compression.snapkv:SnapKV",
        "streaming": "rksc_tot.policies.compression.streaming_llm:Streaming",
    },
)


def compression_policy(named: str | CompressionPolicy | None) -> CompressionPolicy | None:
    """The policy of that name with default settings, or the policy itself; None means no compression.

    Raises
    ------
    ConfigError
        If no policy has that name, or the value is not a policy.
    """
    if named is None or isinstance(named, CompressionPolicy):
        return named
    given: object = named
    if isinstance(given, type) and issubclass(given, CompressionPolicy):
        name = given.__name__
        raise ConfigError(f"compress is the class {name}", hint=f"give an object of it, such as {name}(budget=256)")
    if isinstance(given, Mapping):
        settings = ", ".join(f"{key}={shown(given[key])}" for key in given if key != "name")
        _refuse_settings(given, given.get("name"), settings)
    if isinstance(given, str) and (written := re.fullmatch(r"(.+?):(\w+=.*)", given, re.DOTALL)):
        plain = re.fullmatch(r"\w+=[\d.]+(,\w+=[\d.]+)*", written[2])
        _refuse_settings(given, written[1], written[2].replace(",", ", ") if plain else "setting=value")
    if not isinstance(given, str):
        hint = (
            f"name one of {', '.join(COMPRESSION_POLICIES.names())}, or derive your own from PathPolicy or TreePolicy"
        )
        raise ConfigError(f"compress is {shown(given)}", hint=hint)
    return COMPRESSION_POLICIES.make(given)


def _refuse_settings(given: object, name: object, settings: str) -> None:
    """Raise ConfigError for a policy name with settings as the command line writes them."""
    home = COMPRESSION_POLICIES.home(name) if isinstance(name, str) else None
    if home is not None:
        module, made = home
        raise ConfigError(
            f"compress is {shown(given)}",
            hint=f"in Python write {made}({settings}), after from {module} import {made}",
        )
