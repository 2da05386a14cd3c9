"""Parses sizes in bytes, such as ``64MiB``."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final, Literal, cast

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.user_code import shown

MOST = 1 << 62
"""More bytes than any machine has."""

OFFLOAD_BUDGET = "1GiB"
"""Default limit of an offload store."""

AUTO: Final = "auto"
"""The budget that is what the device has left."""

UNITS = {"": 1, "b": 1} | {
    prefix + infix + "b": base ** (n + 1)
    for n, prefix in enumerate("kmgt")
    for infix, base in (("", 1000), ("i", 1024))
}


def kv_bytes(size: int | str, called: str = "") -> int:
    """A budget of KV bytes, resident or offloaded; at most :data:`MOST`.

    Parameters
    ----------
    size
        A whole number, or a string such as ``64MiB``, ``1.5 GiB`` or ``67108864``.
    called
        Name of the setting or option, for the message.

    Raises
    ------
    ConfigError
        If the size has neither form, or is not above 0.
    """
    found, given = 0, cast("object", size)
    if isinstance(given, str):
        written = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?b|b?)\s*", given, re.ASCII | re.IGNORECASE)
        if written:
            found = int(Decimal(written[1]) * UNITS[written[2].lower()])
    elif isinstance(given, int) and not isinstance(given, bool):
        found = given
    if found < 1:
        raise ConfigError(
            f"{called} {shown(size)} is no size in bytes".lstrip(),
            hint="give bytes above 0, such as 64MiB, 1.5GiB, 500MB or 67108864",
        )
    return min(found, MOST)


def kv_budget(size: int | str, called: str = "") -> int | Literal["auto"]:
    """A budget of resident KV: ``auto``, or as :func:`kv_bytes` reads it."""
    return AUTO if isinstance(size, str) and size.strip().lower() == AUTO else kv_bytes(size, called)
