"""Keys of named random streams. Each stream depends on its name only, so the order of draws from other streams is irrelevant."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def stream_key(*names: object) -> int:
    """The 128-bit key of the stream with these names (seed, problem, branch of the node, and so on)."""
    text = "\x1f".join(map(str, names)).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "big")


def stream_keys(branches: Iterable[int], *names: object) -> tuple[int, ...]:
    """One key for each branch."""
    return tuple(stream_key(*names, branch) for branch in branches)
