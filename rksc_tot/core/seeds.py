"""Private random streams: every draw follows from the run's seed and the name of what draws, never from who draws first."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def stream_key(*names: object) -> int:
    """A 128-bit key for the stream called by ``names`` (run seed, problem, node path, branch …)."""
    text = "\x1f".join(map(str, names)).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "big")


def stream_keys(branches: Iterable[int], *names: object) -> tuple[int, ...]:
    """One key a branch."""
    return tuple(stream_key(*names, branch) for branch in branches)
