"""Uniform random numbers of many branches at once, each branch with a private stream.

The i-th number of a stream is the i-th ``numpy.random.Generator(numpy.random.Philox(key=key)).random()``. Creating thousands
of such generators takes longer than drawing from them, so all streams are computed together.
Philox4x64-10: Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = np.array([0xD2E7470EE14C6C93, 0xCA5A826395121157], dtype=np.uint64)
_WEYL = np.array([0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B], dtype=np.uint64)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
FIRST = 16  # numbers of the first draw, a multiple of 4


class Streams:
    """Uniform numbers of ``n`` streams. ``keys``: a key of 128 bits for each stream."""

    __slots__ = ("_drawn", "_keys")

    def __init__(self, keys: Sequence[int]) -> None:
        words = [[key & (1 << 64) - 1, key >> 64] for key in keys]
        self._keys = np.array(words, dtype=np.uint64).reshape(len(words), 2)
        self._drawn = np.empty((len(words), 0))

    def __getitem__(self, position: int) -> NDArray[np.float64]:
        """Numbers ``[n]`` in [0, 1), one from each stream, at a position."""
        while position >= self._drawn.shape[1]:
            known = self._drawn.shape[1]
            self._drawn = np.concatenate([self._drawn, self._draw(known, max(FIRST, known))], 1)
        return self._drawn[:, position]

    def _draw(self, first: int, count: int) -> NDArray[np.float64]:
        """The numbers at ``first`` to ``first + count``, both multiples of 4."""
        streams, blocks = len(self._keys), count // 4
        counter = np.zeros((streams, blocks, 4), dtype=np.uint64)
        counter[:, :, 0] = np.arange(first // 4 + 1, first // 4 + 1 + blocks, dtype=np.uint64)
        key = np.broadcast_to(self._keys[:, None], (streams, blocks, 2))
        with np.errstate(over="ignore"):
            for turn in range(10):
                high, low = _product(counter[:, :, ::2])
                keyed = key + np.uint64(turn) * _WEYL
                counter = np.stack(
                    [high[..., 1] ^ counter[..., 1] ^ keyed[..., 0], low[..., 1],
                     high[..., 0] ^ counter[..., 3] ^ keyed[..., 1], low[..., 0]], -1
                )  # fmt: skip
        return (counter.reshape(streams, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _product(words: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """High and low word of the 128-bit products of ``words [..., 2]`` with the multipliers."""
    a_high, a_low = words >> _HALF, words & _LOW
    b_high, b_low = _MULTIPLIERS >> _HALF, _MULTIPLIERS & _LOW
    low, cross, other = a_low * b_low, a_high * b_low, a_low * b_high
    middle = (low >> _HALF) + (cross & _LOW) + (other & _LOW)
    high = a_high * b_high + (cross >> _HALF) + (other >> _HALF) + (middle >> _HALF)
    return high, words * _MULTIPLIERS
