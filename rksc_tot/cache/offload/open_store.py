"""Opens the offload store that the settings of an engine name."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import cast

from rksc_tot.cache.offload.disk import SpillFile
from rksc_tot.cache.offload.memory import Slabs
from rksc_tot.cache.offload.store import OffloadStore
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.core.sizes import OFFLOAD_BUDGET, kv_bytes


def open_store(
    named: str | OffloadStore | None, limit: int | str = OFFLOAD_BUDGET, folder: str | Path | None = None
) -> OffloadStore | None:
    """A new store, or ``named`` itself if it is a store or None.

    Parameters
    ----------
    named
        ``"cpu"``: host memory, pinned where the arena is on CUDA. ``"disk"``: a file.
    limit
        Bytes that a new store may hold, or a text such as ``"4GiB"``.
    folder
        Folder of the file, which exists only while the store is open and, where the system allows, has no name. None: the
        system's folder for temporary files.

    Raises
    ------
    ConfigError
        If there is no such store or folder, the folder is no path, the limit is not above 0, the store has no use for a
        folder, or the store is closed.
    """
    if named is None:
        return None
    if isinstance(named, OffloadStore):
        if named.closed:
            raise ConfigError("this offload store is closed", hint="open another one")
        if folder is not None or kv_bytes(limit) != kv_bytes(OFFLOAD_BUDGET):
            raise ConfigError("this offload store has a budget and a place of its own", hint="leave others out")
        return named
    if named not in ("cpu", "disk"):
        raise ConfigError(f"offload is {cast('object', named)!r}", hint="name one of cpu, disk")
    size = kv_bytes(limit, "offload_budget")
    if named == "cpu":
        if folder is not None:
            raise ConfigError(
                f"offload to cpu has no use for the folder {str(folder)!r}", hint="offload to disk, or leave it out"
            )
        return OffloadStore("memory", size, Slabs)
    if folder is not None and (not isinstance(cast("object", folder), str | Path) or not folder):
        raise ConfigError(f"offload_folder is {shown(folder)}", hint="give the path of a folder, or leave it out")
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError(f"there is no folder {str(folder)!r} to offload to", hint="make it, or leave it out")
    return OffloadStore("disk", size, partial(SpillFile, folder=None if folder is None else Path(folder)))
