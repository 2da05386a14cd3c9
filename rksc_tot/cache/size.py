"""Sizes in bytes, as people write them."""

from __future__ import annotations

import re

from rksc_tot.errors import ConfigError

UNITS = {
    "": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def kv_bytes(size: int | str) -> int:
    """A KV budget in bytes: a whole number, or a text such as ``64MiB``, ``1.5 GiB``, ``500MB`` or ``67108864``.

    Raises
    ------
    ConfigError
        If it is neither, or not above 0.
    """
    found = 0
    if isinstance(size, str):
        written = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?b|)b?\s*", size, re.ASCII | re.IGNORECASE)
        if written:
            number, unit = written.groups()
            found = int(float(number) * UNITS[unit.lower()]) if "." in number else int(number) * UNITS[unit.lower()]
    elif isinstance(size, int) and not isinstance(size, bool):
        found = size
    if found < 1:
        raise ConfigError(
            f"{size!r} is no KV budget", hint="give bytes above 0, such as 64MiB, 1.5GiB, 500MB or 67108864"
        )
    return found
