"""How long the passes of two engines run at the same time."""

from __future__ import annotations

import time
from typing import Any

Interval = tuple[float, float]


class PassTimes:
    """Notes when passes of two engines begin and end, until :meth:`stop`."""

    def __init__(self, writer: Any, reader: Any) -> None:
        self._noted: list[list[Interval]] = [[], []]
        self._forwards = [writer.forward, reader.forward]
        for forward, noted in zip(self._forwards, self._noted, strict=True):
            forward.run = _timed(forward.run, noted)

    def stop(self) -> dict[str, float]:
        """Seconds of passes of either engine and of both together, and the share of the reader's that overlap."""
        for forward in self._forwards:
            del forward.run
        writing, reading = (sum(end - start for start, end in noted) for noted in self._noted)
        both = sum(
            max(0.0, min(a_end, b_end) - max(a_start, b_start))
            for a_start, a_end in self._noted[0]
            for b_start, b_end in self._noted[1]
        )
        return {
            "writing_seconds": round(writing, 3),
            "reading_seconds": round(reading, 3),
            "both_seconds": round(both, 3),
            "share_of_reading": round(both / reading, 3) if reading else 0.0,
        }


def _timed(run: Any, noted: list[Interval]) -> Any:
    def timed(*args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return run(*args, **options)
        finally:
            noted.append((start, time.perf_counter()))

    return timed
