"""Records in a file.

The file is read into a buffer and written by ``write``, not through a memory map. Through a map, an unreadable sector, a file
that was cut short or a full disk ends the process (SIGBUS) instead of raising an error, and data may change between check and
copy. The kernel's page cache serves both ways alike.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
import zlib
from pathlib import Path

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.offload.records import Records


class SpillFile:
    """A temporary file without a name where the system allows, so a killed process leaves nothing behind.

    Each record has a checksum (CRC-32), which is kept in memory.

    Raises
    ------
    OSError
        If no file can be made.
    """

    BUFFER = 1 << 20  # bytes

    def __init__(self, records: Records, rows: int, folder: Path | None = None) -> None:
        self.step = min(rows, max(1, self.BUFFER // records.size))
        self._records = records
        self._buffer = records.room(self.step)
        self._sums: dict[int, int] = {}  # by row
        try:
            self._file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115  # open as long as this lives
        except OSError as error:
            if (where := folder or tempfile.tempdir) is None:  # the system has no folder, and the error says so
                raise
            raise OSError(error.errno, f"{error.strerror or error}, in the folder {str(where)!r}") from error
        self._closing = weakref.finalize(self, self._file.close)

    def put(self, rows: range, arena: Arena, slots: list[int]) -> None:
        """Write the KV in ``slots``, one each, to ``rows``, at most :attr:`step`. Raises OSError."""
        buffer = self._buffer[: len(rows)]
        self._records.pack(arena, slots, buffer)
        self._records.wait()
        records = buffer.numpy()
        self._file.seek(rows.start * self._records.size)
        left = records.data.cast("B")
        while left:
            left = left[self._file.write(left) :]
        self._sums.update((row, zlib.crc32(record)) for row, record in zip(rows, records, strict=True))

    def fetch(self, rows: range, arena: Arena, slots: list[int]) -> None:
        """Copy ``rows`` back into ``slots``. No row is copied unless all have their checksums. Raises OSError."""
        buffer = self._buffer[: len(rows)]
        records = buffer.numpy()
        self._file.seek(rows.start * self._records.size)
        left = records.data.cast("B")
        while left:
            read = self._file.readinto(left)
            if not read:
                raise OSError("the file ends too early")
            left = left[read:]
        if any(zlib.crc32(record) != self._sums[row] for row, record in zip(rows, records, strict=True)):
            raise OSError("the file does not hold what was written to it")
        self._records.unpack(arena, slots, buffer)
        self._records.wait()

    def prefetch(self, rows: range) -> None:
        """Ask the system to read ahead, where it can be asked."""
        if hasattr(os, "posix_fadvise"):
            size = self._records.size
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._file.fileno(), rows.start * size, len(rows) * size, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Remove the file."""
        self._closing()
