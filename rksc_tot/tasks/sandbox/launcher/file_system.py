"""The files that the code sees: Python and the system's libraries read-only, and an empty ``/tmp`` in memory.

The root is a small tmpfs of the sandbox's mount namespace. Nothing of it appears outside, and the kernel drops it with the last
process. There is no ``/proc``, ``/sys``, ``/etc`` or ``/home``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from .system_calls import (
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    make_read_only,
    mount,
    pivot_root,
    unmount,
)

_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/nix/store", "/gnu/store")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_OLD = "/old"
_MOST_FILES = 4096


def enter(base: str, folders: Sequence[str], disk: int) -> None:
    """Make the new root on the empty folder ``base`` and move into its ``/tmp``.

    ``folders``: what the code may read besides the system's libraries. ``disk``: most bytes in ``/tmp``.
    """
    mount("none", "/", None, MS_REC | MS_PRIVATE)  # what is mounted from here on stays in this namespace
    mount("tmpfs", base, "tmpfs", MS_NOSUID, "size=1m,mode=755")
    os.mkdir(base + _OLD)
    pivot_root(base, base + _OLD)
    os.chdir("/")
    os.mkdir("/tmp")
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, f"size={disk},nr_inodes={_MOST_FILES},mode=777")
    for folder in (*_SYSTEM, *folders):
        _show(folder)
    for device in _DEVICES:
        _bind(device)
    unmount(_OLD)
    os.rmdir(_OLD)
    make_read_only("/", below=False)
    os.chdir("/tmp")


def _show(folder: str) -> None:
    """Show a folder under its own name, read-only; a symbolic link such as ``/lib`` as the same link."""
    if not os.path.lexists(_OLD + folder) or os.path.lexists(folder):  # a parent may show it already
        return
    if os.path.islink(_OLD + folder):
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        os.symlink(os.readlink(_OLD + folder), folder)
        return
    _bind(folder)
    make_read_only(folder, below=True)


def _bind(source: str) -> None:
    if os.path.isdir(_OLD + source):
        os.makedirs(source)
    else:
        os.makedirs(os.path.dirname(source), exist_ok=True)
        open(source, "x").close()
    mount(_OLD + source, source, None, MS_BIND | MS_REC)
