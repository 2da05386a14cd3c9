"""Asking the system for memory as rarely as possible."""

from __future__ import annotations

import contextlib
import ctypes

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # of glibc's mallopt
LARGEST_KEPT = 32 << 20  # bytes, the most it takes
MOST_KEPT = (1 << 31) - 1


def keep_freed_memory() -> None:
    """Let the process keep the memory of tensors it has freed, for the next ones.

    glibc gives large blocks back at once; a forward pass on the CPU makes and frees hundreds of them, and having them mapped anew
    took up to a quarter of a prefill. Concerns the whole process; nothing happens where the C library is another.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(TRIM_THRESHOLD, MOST_KEPT)
