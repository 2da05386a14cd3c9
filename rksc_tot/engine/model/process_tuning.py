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
MOST_KEPT = 256 << 20  # bytes
SOFT = 1  # of OpenMP's omp_pause_resource_all: what is needed again is made again


def keep_freed_memory() -> None:
    """Let the process keep up to :data:`MOST_KEPT` bytes of freed memory for the next tensors.

    glibc returns large blocks to the system at once. A forward pass on the CPU allocates and frees hundreds of them: a prefill of
    512 tokens on a model of 135M parameters had 83,000 page faults, and took 12 % less processor time without them. The setting
    is the whole process's. Other C libraries are left as they are.
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
