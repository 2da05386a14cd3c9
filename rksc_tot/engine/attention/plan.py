"""The plan of one forward pass: tokens with their positions and slots, and the slots that each token attends to.

A *block* is a run of new tokens at the end of one path: a chunk of a prompt, one sampled token, a verifier's question. For
attention it is cut into *pieces*; pieces of about the same size form a *group*. The keys of a group come in parts
(:mod:`rksc_tot.engine.attention.prefix_groups`). Ancestors that several pieces share are read once. The other ancestors of a
piece and its own rows are its *private* keys, padded to the longest of the group.

::

    group:   prompt        s s s s s s s s           one product for all pieces
             long thoughts  s s s s │ s s s          one product for the pieces that share a thought
             private          p p r r ·              other ancestors, own rows (causal), padding
                              p r r · ·

**The keys of one product do not depend on the rest of the batch.** A path has *tile boundaries*: every 128 positions up to the
end of its prompt, at that end, and every 128 positions after it. Weights times values are added up tile by tile, in order; a
long prompt is one tile for the rows after it. So the bits of a row do not depend on shared ancestors, on the chunks of
its path, or on other rows of the batch. This requires matrix products with the same property, which the engine tests when it
loads a model (:mod:`rksc_tot.engine.attention.matmul`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from rksc_tot.cache.prefix_tree import Segment

TILE = 128
"""Positions from one tile boundary to the next. With more keys than this, MKL's order of summation depends on their number."""
LEAST_PROMPT = 32
"""Shorter prompts have no tile boundary at their end: a separate product would cost more than reading them for each piece."""
WORTH = 256
"""Keys times rows from which a separate product costs less than a copy of the keys for each piece."""
LONG_PROMPT = 1024
"""A prompt of at least this many tokens is one tile for all rows after it."""
FAR = 1 << 30  # a position that no row attends to


def tile_start(position: int, prompt: int) -> int:
    """The last tile boundary at or before a position of a path whose prompt ends at ``prompt``."""
    first = prompt if LEAST_PROMPT <= prompt <= position else 0
    return first + (position - first) // TILE * TILE


def tile_end(position: int, prompt: int) -> int:
    """The first tile boundary after a position."""
    following = tile_start(position, prompt) + TILE
    return prompt if prompt >= LEAST_PROMPT and position < prompt < following else following


@dataclass(slots=True)
class Block:
    """New tokens from position ``start`` of the path ``lineage``, to be stored in ``slots``. The path before is resident.

    ``prompt``: end of the path's prompt; 0 if it has none.
    """

    lineage: list[Segment]
    start: int
    tokens: list[int]
    slots: list[int]
    logits_at: list[int] = field(default_factory=list)  # rows of the block whose logits are returned
    prompt: int = 0


class Piece(NamedTuple):
    """Rows of one block between two tile boundaries."""

    block: Block
    row: int  # index of its first row in the pass
    start: int  # position of its first row
    slots: list[int]
    tile: int  # last tile boundary before the piece; keys before it may be shared

    @property
    def in_prompt(self) -> bool:
        """Whether its rows belong to the prompt."""
        return self.start < self.block.prompt

    def context(self, first: int, stop: int) -> tuple[list[int], list[int]]:
        """Slots and positions of the ancestors' resident tokens at positions ``first`` to ``stop``."""
        slots: list[int] = []
        positions: list[int] = []
        for segment in self.block.lineage:
            if segment.start >= stop:
                break
            if segment.end > first:
                of_segment = segment.read(first, stop)
                slots += of_segment[0]
                positions += of_segment[1]
        return slots, positions


@dataclass(slots=True)
class KeySet:
    """``C`` sets of ``T`` keys; ``P`` pieces of a group attend to each set."""

    pieces: slice | Tensor  # [C * P] index into the group's pieces; padding repeats a piece
    sets: int  # C
    slots: slice | Tensor  # [C * T]
    positions: Tensor  # [C, T]; FAR where padded
    hides: bool  # whether some keys are hidden from some rows, with or without a window
    members: slice | Tensor  # the pieces without padding
    real: Tensor | None = None  # index of these among the C * P; None: all
    step: int = TILE  # keys of one product of weights and values
    biases: dict[int | None, Tensor | None] = field(default_factory=dict)

    def rows(self, each: int) -> int:
        """Rows of a set, if a piece has ``each`` rows."""
        pieces = self.pieces.stop - self.pieces.start if isinstance(self.pieces, slice) else len(self.pieces)
        return pieces // self.sets * each

    def bias(self, window: int | None, queries: Tensor, end: int, dtype: torch.dtype) -> Tensor | None:
        """Additive mask ``[C, P, 1, R, T]`` under a window in positions; None if all keys are visible.

        ``queries [B, R]``: positions of the group's rows; ``end``: one past the last of them.
        """
        if window is not None and window >= end:
            window = None
        if window not in self.biases:
            self.biases[window] = self._bias(window, queries, dtype) if self.hides or window is not None else None
        return self.biases[window]

    def _bias(self, window: int | None, queries: Tensor, dtype: torch.dtype) -> Tensor:
        rows = queries[self.pieces].view(self.sets, -1, 1, queries.shape[1], 1)  # [C, P, 1, R, 1]
        keys = self.positions[:, None, None, None, :]
        hidden = keys > rows
        if window is not None:
            hidden = hidden | (keys <= rows - window)
        return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))


@dataclass(slots=True)
class PieceGroup:
    """``B`` pieces of at most ``R`` rows, attended in one batch."""

    rows: slice | Tensor  # [B * R] index into the pass's rows; padding repeats the first row of a piece
    valid: Tensor | None  # which rows are real; None: all
    real: slice | Tensor  # the real rows, as index into the pass's rows
    queries: Tensor  # [B, R] positions
    end: int  # one past the last position
    parts: list[KeySet]  # in the order of positions; the last part is private


@dataclass(slots=True)
class Plan:
    """Everything the model and the attention function need for one pass of ``Q`` rows.

    The first ``n`` rows belong to blocks. The other rows are padding and are not stored.
    """

    ids: Tensor  # [1, Q]
    positions: Tensor  # [1, Q]
    slots: Tensor  # [n]
    logits_at: Tensor  # rows whose logits are returned
    blocks: list[Block]
    groups: list[PieceGroup]

    def pad(self, rows: int) -> None:
        """Repeat the last row until there are ``rows``."""
        missing = rows - self.ids.shape[1]
        if missing > 0:
            self.ids = torch.cat([self.ids, self.ids[:, -1:].expand(1, missing)], 1)
            self.positions = torch.cat([self.positions, self.positions[:, -1:].expand(1, missing)], 1)
