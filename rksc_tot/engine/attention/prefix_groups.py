"""Groups pieces by the ancestors that they share.

Ideas: one product for all rows that share a prefix (Hydragen, https://arxiv.org/abs/2402.05099), on every level of the tree and
split where it forks (DeFT, https://arxiv.org/abs/2404.00242), short nodes merged into others (FastTree, MLSys 2025).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

from rksc_tot.cache.arena import is_run
from rksc_tot.cache.prefix_tree import Segment
from rksc_tot.engine.attention.matmul import LEAST_KEYS
from rksc_tot.engine.attention.plan import FAR, LONG_PROMPT, TILE, WORTH, KeySet, Piece, PieceGroup, tile_end

_end = attrgetter("end")


class Shared(NamedTuple):
    """Keys from position ``first`` to ``stop``, which the pieces ``low`` to ``high`` share."""

    low: int
    high: int
    first: int
    stop: int


def group(pieces: Sequence[Piece], device: torch.device) -> PieceGroup:
    """A group of pieces, ordered so that those with common ancestors are neighbours."""
    if any(piece.tile for piece in pieces):
        pieces = sorted(pieces, key=_place)
    known = [0] * len(pieces)  # up to this position, the ancestors of each piece belong to a part
    short: dict[int, list[Shared]] = {}  # prompts, by the rounded number of pieces that share one
    parts: list[KeySet] = []
    for found in _shared(pieces, 0, len(pieces), 0):
        known[found.low : found.high] = [found.stop] * (found.high - found.low)
        if found.first or found.stop >= WORTH:
            parts.append(_part(pieces, [found], device))
        else:
            short.setdefault((found.high - found.low - 1).bit_length(), []).append(found)
    parts = [*(_part(pieces, alike, device) for alike in short.values()), *parts, _private(pieces, known, device)]
    return _group(pieces, parts, device)


def _place(piece: Piece) -> tuple[int, bool, list[int], int]:
    return piece.block.prompt, piece.in_prompt, [segment.id for segment in piece.block.lineage], piece.start


def _shared(pieces: Sequence[Piece], low: int, high: int, done: int) -> Iterator[Shared]:
    """The keys worth one product, for paths that are equal up to the tile boundary ``done``; ancestors first.

    For rows after the prompt, the prompt is always a product of its own, since a tile boundary is at its end.
    """
    while low < high:
        one = pieces[low]
        prompt, stop = one.block.prompt, tile_end(done, one.block.prompt)
        if not done and one.tile >= prompt >= LONG_PROMPT:
            stop = prompt  # always one product
        last = low
        while last < high and _goes_on(pieces[last], one, stop):
            last += 1
        if last == low:  # its own path ends here
            low += 1
            continue
        run = pieces[low:last]
        while stop != prompt and all(_goes_on(piece, one, tile_end(stop, prompt)) for piece in (run[0], run[-1])):
            if any(piece.tile == stop for piece in run):
                break
            stop = tile_end(stop, prompt)
        must = stop <= prompt and not one.in_prompt
        if must or sum(len(piece.slots) for piece in run) * (stop - done) >= WORTH:
            yield Shared(low, last, done, stop)
            yield from _shared(pieces, low, last, stop)
        low = last


def _goes_on(piece: Piece, one: Piece, tile: int) -> bool:
    """Whether a piece begins after a tile boundary, and its path equals that of ``one`` up to there."""
    alike = piece.block.prompt == one.block.prompt and piece.in_prompt == one.in_prompt
    return alike and piece.tile >= tile and _at(piece, tile) is _at(one, tile)


def _at(piece: Piece, position: int) -> Segment | None:
    """The segment with the token before a position. Paths with the same segment there are equal up to that position."""
    lineage = piece.block.lineage
    n = bisect_right(lineage, position - 1, key=_end)
    return lineage[n] if n < len(lineage) else None


def _part(pieces: Sequence[Piece], sets: Sequence[Shared], device: torch.device) -> KeySet:
    """Sets of shared keys as one part: sets in order, padded to the longest set and to the largest number of pieces."""
    most = max(one.high - one.low for one in sets)
    contexts = [pieces[one.low].context(one.first, one.stop) for one in sets]
    longest = max(1, *(len(found) for found, _ in contexts))
    whole = sets[0].first == 0 and sets[0].stop == pieces[sets[0].low].block.prompt >= LONG_PROMPT
    if not whole:
        longest = _enough(longest)
    index: list[int] = []
    real: list[int] = []
    slots: list[int] = []
    positions: list[list[int]] = []
    for one, (found, at) in zip(sets, contexts, strict=True):
        real += range(len(index), len(index) + one.high - one.low)
        index += [*range(one.low, one.high), *[one.low] * (most - one.high + one.low)]
        pad = longest - len(found)
        slots += [*found, *(found or pieces[one.low].slots)[:1] * pad]
        positions.append([*at, *[FAR] * pad])
    return KeySet(
        pieces=as_index(index, device),
        sets=len(sets),
        slots=as_index(slots, device),
        positions=torch.tensor(positions, device=device),
        hides=any(row[-1] == FAR for row in positions),
        members=as_index([index[i] for i in real], device),
        real=torch.tensor(real, device=device) if len(real) < len(index) else None,
        step=longest if whole else TILE,
    )


def _private(pieces: Sequence[Piece], known: Sequence[int], device: torch.device) -> KeySet:
    """The private part: ancestors of each piece that no other part holds, and its own rows."""
    contexts = [piece.context(first, piece.start) for piece, first in zip(pieces, known, strict=True)]
    longest = _enough(max(len(found) + len(piece.slots) for piece, (found, _) in zip(pieces, contexts, strict=True)))
    slots: list[int] = []
    positions: list[list[int]] = []
    for piece, (found, at) in zip(pieces, contexts, strict=True):
        pad = longest - len(found) - len(piece.slots)
        slots += [*found, *piece.slots, *piece.slots[-1:] * pad]
        positions.append([*at, *range(piece.start, piece.start + len(piece.slots)), *[FAR] * pad])
    return KeySet(
        pieces=slice(0, len(pieces)),
        sets=len(pieces),
        slots=as_index(slots, device),
        positions=torch.tensor(positions, device=device),
        hides=True,
        members=slice(0, len(pieces)),
    )


def _enough(keys: int) -> int:
    """The smallest number of keys from ``keys`` on with at least :data:`LEAST_KEYS` in the product of each tile."""
    return keys + max(0, LEAST_KEYS - keys % TILE) if keys % TILE else keys


def _group(pieces: Sequence[Piece], parts: list[KeySet], device: torch.device) -> PieceGroup:
    width = max(len(piece.slots) for piece in pieces)
    rows: list[int] = []
    valid: list[int] = []
    queries: list[list[int]] = []
    for n, piece in enumerate(pieces):
        count = len(piece.slots)
        tail = width - count
        rows += [*range(piece.row, piece.row + count), *[piece.row] * tail]
        valid += range(n * width, n * width + count)
        queries.append([*range(piece.start, piece.start + count), *[piece.start] * tail])
    return PieceGroup(
        rows=as_index(rows, device),
        valid=torch.tensor(valid, device=device) if len(valid) < len(rows) else None,
        real=as_index([rows[i] for i in valid], device),
        queries=torch.tensor(queries, device=device),
        end=max(piece.start + len(piece.slots) for piece in pieces),
        parts=parts,
    )


def as_index(numbers: list[int], device: torch.device) -> slice | Tensor:
    """Consecutive numbers as a slice, since a slice makes a view; others as a tensor."""
    return slice(numbers[0], numbers[-1] + 1) if is_run(numbers) else torch.tensor(numbers, device=device)
