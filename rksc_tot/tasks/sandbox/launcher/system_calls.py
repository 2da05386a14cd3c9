"""System calls of Linux that Python does not offer, through ctypes. Each raises OSError with the call's name if it fails."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x20000
CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
CLONE_NEWCGROUP, CLONE_NEWTIME = 0x2000000, 0x80
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38

_MOUNT_SETATTR = 442  # the same number on all machines
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_RDONLY, _NOSUID, _NODEV = 1, 2, 4  # MOUNT_ATTR_*

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(namespaces: int) -> None:
    """Give the process new namespaces: a bit mask of ``CLONE_NEW*``."""
    _check("unshare", _libc.unshare(namespaces))


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mount a file system of a kind, or bind a folder to another name."""
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    _check("mount", _libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(options)))


def unmount(target: str) -> None:
    """Detach a mount and all mounts below it."""
    _check("umount", _libc.umount2(os.fsencode(target), MNT_DETACH))


def pivot_root(new: str, old: str) -> None:
    """Make the mount ``new`` the root of the file system; the former root appears at ``old``."""
    number = _PIVOT_ROOT[os.uname().machine]
    _check("pivot_root", _libc.syscall(ctypes.c_long(number), os.fsencode(new), os.fsencode(old)))


def make_read_only(target: str, *, below: bool) -> None:
    """Make a mount read-only, without set-user-ID programs; ``below``: and all mounts below it, without device files."""
    attributes = (ctypes.c_uint64 * 4)(_RDONLY | _NOSUID | (_NODEV if below else 0), 0, 0, 0)
    flags = ctypes.c_uint(_AT_RECURSIVE if below else 0)
    call = ctypes.c_long(_MOUNT_SETATTR), ctypes.c_int(_AT_FDCWD), os.fsencode(target), flags
    _check("mount_setattr", _libc.syscall(*call, ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes))))


def prctl(option: int, value: int, argument: object = 0) -> None:
    """Change a property of this process."""
    third = ctypes.c_ulong(argument) if isinstance(argument, int) else argument
    _check("prctl", _libc.prctl(option, ctypes.c_ulong(value), third, ctypes.c_ulong(0), ctypes.c_ulong(0)))


def _check(call: str, result: int) -> None:
    if result == -1:
        error = ctypes.get_errno()
        raise OSError(error, f"{call}: {os.strerror(error)}")
