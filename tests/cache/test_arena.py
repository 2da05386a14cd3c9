"""The arena grows with the KV that is stored, and growing never loses KV."""

import pytest
import torch

from rksc_tot.cache import arena as module
from rksc_tot.cache.arena import Arena

LAYERS = 3


def filled(rows, limit=1 << 20):
    """An arena with random KV in its first rows."""
    arena, drawn = Arena(limit), torch.Generator().manual_seed(0)
    arena.reserve(rows)
    for layer in range(LAYERS):
        keys, values = (torch.randn(2, rows, dim, generator=drawn) for dim in (4, 6))
        arena.write(layer, keys, values, torch.arange(rows))
    return arena


def content(arena, rows):
    return [part[:, :rows].clone() for layer in range(LAYERS) for part in arena.read(layer)]


@pytest.mark.parametrize("limit", [1 << 20, 5000])
def test_growing_keeps_the_kv_and_never_adds_more_than_half(limit):
    arena = filled(900, limit)
    before = content(arena, 900)
    for extent in range(900, 5000, 37):
        arena.reserve(extent)
        assert extent <= arena.rows <= min(limit, max(Arena.FIRST_ROWS, int(Arena.GROWTH * extent)))
        assert all(part.shape[1] == arena.rows for layer in range(LAYERS) for part in arena.read(layer))
    assert all(map(torch.equal, content(arena, 900), before))


def test_an_arena_that_could_not_grow_keeps_the_kv_and_can_grow_later(monkeypatch):
    arena, grow, grown = filled(Arena.FIRST_ROWS), module._grown, []
    before = content(arena, Arena.FIRST_ROWS)

    def short(old, rows):
        if len(grown) == 2:
            raise MemoryError
        grown.append(rows)
        return grow(old, rows)

    monkeypatch.setattr(module, "_grown", short)
    with pytest.raises(MemoryError):
        arena.reserve(2000)
    assert arena.rows == Arena.FIRST_ROWS
    assert all(map(torch.equal, content(arena, Arena.FIRST_ROWS), before))
    monkeypatch.setattr(module, "_grown", grow)
    arena.reserve(2000)
    assert {part.shape[1] for layer in range(LAYERS) for part in arena.read(layer)} == {arena.rows}
    assert all(map(torch.equal, content(arena, Arena.FIRST_ROWS), before))
