"""Build the plan of one forward pass from blocks of new tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rksc_tot.engine.attention.plan import Block, Piece, Plan, tile_end, tile_start
from rksc_tot.engine.attention.prefix_groups import group


def build(blocks: Sequence[Block], device: torch.device) -> Plan:
    """The plan that computes ``blocks`` together. No block may be an ancestor of another."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    wanted: list[int] = []
    alike: dict[tuple[int, int], list[Piece]] = {}
    for block in blocks:
        first = len(ids)
        wanted += [first + i for i in block.logits_at]
        ids += block.tokens
        slots += block.slots
        positions += range(block.start, block.start + len(block.tokens))
        for piece in _pieces(block, first):
            keys = piece.start + len(piece.slots) - piece.tile
            size = ((len(piece.slots) - 1).bit_length(), (max(0, keys - 1) // 32).bit_length())
            alike.setdefault(size, []).append(piece)

    def vector(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    groups = [group(pieces, device) for pieces in alike.values()]
    return Plan(vector(ids)[None], vector(positions)[None], vector(slots), vector(wanted), list(blocks), groups)


def _pieces(block: Block, row: int) -> list[Piece]:
    """Cut a block at the tile boundaries of its path."""
    start, stop = block.start, block.start + len(block.tokens)
    if stop <= tile_end(start, block.prompt):
        return [Piece(block, row, start, block.slots, tile_start(start, block.prompt))]
    found = []
    while start < stop:
        end = min(stop, tile_end(start, block.prompt))
        done = start - block.start
        found.append(
            Piece(block, row + done, start, block.slots[done : end - block.start], tile_start(start, block.prompt))
        )
        start = end
    return found
