"""Arenas full of random bits, and their content as bits."""

import torch

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.offload.records import Records

ROWS = 64
WORDS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
DTYPES = list(WORDS)
PLAIN = [(2, 8, 8, torch.float32), (2, 8, 8, torch.float32)]
UNLIKE = [(3, 5, 8, torch.bfloat16), (1, 16, 16, torch.float32), (4, 1, 3, torch.float16)]
"""Heads, dims of keys and of values, dtype of each layer; the second leaves gaps between the fields of a record."""


def filled(shapes, seed=0, rows=ROWS):
    """An arena full of random bits, with all kinds of NaN."""
    arena, drawn = Arena(rows), torch.Generator().manual_seed(seed)
    arena.reserve(rows)

    def bits(heads, dim, dtype):
        limits = torch.iinfo(WORDS[dtype])
        shape = (heads, arena.rows, dim)
        return torch.randint(limits.min, limits.max, shape, generator=drawn, dtype=WORDS[dtype]).view(dtype)

    with torch.inference_mode():
        for layer, (heads, keys, values, dtype) in enumerate(shapes):
            everywhere = torch.arange(arena.rows)
            arena.write(layer, bits(heads, keys, dtype), bits(heads, values, dtype), everywhere)
    return arena


def content(arena, slots):
    """The bits of slots."""
    return [t[:, slots].view(WORDS[t.dtype]).clone() for layer in sorted(arena.keys) for t in arena.read(layer)]


@torch.inference_mode()
def wipe(arena):
    for part in (*arena.keys.values(), *arena.values.values()):
        part.zero_()


def same(one, other):
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def size_of(shapes):
    return Records.of(filled(shapes)).size
