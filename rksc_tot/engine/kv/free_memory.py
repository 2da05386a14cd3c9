"""The KV budget ``auto``: a share of the memory that a device has left when the engine is made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from rksc_tot.core.errors import ConfigError

HOST_SHARE, CARD_SHARE = 0.5, 0.8  # the rest is for the passes, and on the host for other programs
MEMINFO = Path("/proc/meminfo")
GROUPS = (  # limit and use of a container, by version of cgroups
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


def automatic_budget(device: torch.device) -> int:
    """Bytes of KV that may be resident on a device whose model is loaded.

    Raises
    ------
    ConfigError
        If the system does not say how much memory is left.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # of torch's own pool
        return int(CARD_SHARE * (free + unused))
    left = min(_left_on_host(), default=None)
    if left is None:
        raise ConfigError("this system does not say how much memory is left", hint="set kv_budget to a size")
    return int(HOST_SHARE * left)


def _left_on_host() -> Iterator[int]:
    """Bytes that the system, and the container of this process, have left."""
    for line in _text(MEMINFO).splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024
    for limit, used in GROUPS:
        most, now = _text(limit).strip(), _text(used).strip()
        if most.isdigit() and now.isdigit():
            yield max(0, int(most) - int(now))


def _text(file: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return file.read_text(encoding="ascii")
    except OSError:
        return ""
