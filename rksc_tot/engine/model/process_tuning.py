"""What the C libraries of this process are asked for: memory as rarely as possible, and threads that do not stand in the way."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # of glibc's mallopt
LARGEST_KEPT = 32 << 20  # bytes, the most it takes
MOST_KEPT = (1 << 31) - 1
SOFT = 1  # of OpenMP's omp_pause_resource_all: what is needed again is made again


def keep_freed_memory() -> None:
    """Let the process keep the memory of tensors it has freed, for the next ones.

    glibc gives large blocks back at once; a forward pass on the CPU makes and frees hundreds of them, and having them mapped anew
    took up to a quarter of a prefill. Concerns the whole process; nothing happens where the C library is another.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(TRIM_THRESHOLD, MOST_KEPT)


def idle_threads() -> Callable[[], Any]:
    """What ends the idle OpenMP threads of whoever calls it; they are started again when he next computes.

    GNU's OpenMP gives every thread that computes helpers of its own. If there are more of all those than processors, helpers
    sleep between two operations instead of waiting awake, and each operation takes some 50 µs longer: the engine's thread must
    not be slowed down by helpers of another that has loaded a model, say. Nothing happens where torch has another OpenMP.
    """
    import torch

    library = Path(torch.__file__).parent / "lib" / "libgomp.so.1"
    if library.is_file():
        with contextlib.suppress(OSError, AttributeError):
            pause = ctypes.CDLL(str(library)).omp_pause_resource_all
            return lambda: pause(SOFT)
    return lambda: None


@functools.cache
def allow_forks() -> None:
    """Let torch compute in processes that are forked from this one.

    A forked process has only the thread that called fork. That thread's OpenMP helpers do not exist there, and its first
    parallel operation would wait for them for ever. So they are ended before each fork.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=idle_threads())
