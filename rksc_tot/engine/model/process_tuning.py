"""Process-wide settings of C libraries: memory allocation by glibc and threads by OpenMP."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # of glibc's mallopt
LARGEST_KEPT = 32 << 20  # bytes, the largest value glibc accepts
MOST_KEPT = 256 << 20  # bytes
SOFT = 1  # of OpenMP's omp_pause_resource_all: resources are created again when needed


def keep_freed_memory() -> None:
    """Let the process keep up to :data:`MOST_KEPT` bytes of freed memory for the next tensors.

    glibc returns large blocks to the system at once. A forward pass on the CPU allocates and frees hundreds of them: a prefill of
    512 tokens on a model of 135M parameters had 83,000 page faults, and took 12 % less processor time without them. The setting
    holds for the whole process. With other C libraries nothing changes.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(TRIM_THRESHOLD, MOST_KEPT)


def idle_threads() -> Callable[[], Any]:
    """A function that ends the idle OpenMP threads of the calling thread. They start again with its next operation.

    GNU's OpenMP gives every computing thread its own worker threads. If there are more of them than processors, workers sleep
    between two operations instead of spinning, and each operation takes some 50 µs longer. Without this call, workers of a
    thread that has loaded a model would slow down the engine thread. With another OpenMP the function does nothing.
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

    A forked process has only the thread that called fork. The OpenMP workers of that thread do not exist in the new process, and
    its first parallel operation would wait for them for ever. So the workers are ended before each fork.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=idle_threads())
