"""One forward pass: which tokens, at which positions, into which slots, seeing which slots.

A *block* is a run of new tokens at the end of one path: a chunk of a prompt, one sampled token, a verifier's question. For
attention it is cut into *pieces*, and pieces of about the same size form a *group*. What a group's pieces see comes in parts
(:mod:`rksc_tot.engine.attention.prefix_groups`): ancestors that several of them share are read once for all of those,
and the rest of a
piece's ancestors and the piece itself are its *private* keys, padded to the longest of the group.

::

    group:   prompt        s s s s s s s s           one product for all pieces
             long thoughts  s s s s │ s s s          one product for those that share one
             private          p p r r ·              ancestors left, own rows (causal), padding
                              p r r · ·

**Which keys make up one product does not depend on the company.** A path has *seams*: every 128 positions up to the end of
its prompt, there, and every 128 positions from there on. Weights times values are added up from seam to seam, in order (what
comes after a long prompt takes that in one step), so a row's result is the same to the last bit whether its ancestors are
shared with others or not, in which chunks they were computed, and who else is in the pass (where the products themselves keep
to that, which the engine finds out when a model is loaded).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from rksc_tot.cache.prefix_tree import Segment

TILE = 128
"""Positions from one seam to the next. In products over more keys than this, MKL's order of summation depends on how many."""
LEAST_PROMPT = 32
"""Shorter prompts have no seam at their end: reading them with each piece is cheaper than a product of their own."""
WORTH = 256
"""Keys times rows that see them, from which a product of their own costs less than copying them to each piece."""
LONG_PROMPT = 1024
"""From this many tokens on a prompt is one product for whatever comes after it."""
FAR = 1 << 30  # a position nobody sees


def tile_start(position: int, prompt: int) -> int:
    """The last seam at or before a position of a path whose prompt ends at ``prompt``."""
    first = prompt if LEAST_PROMPT <= prompt <= position else 0
    return first + (position - first) // TILE * TILE


def tile_end(position: int, prompt: int) -> int:
    """The first seam after a position."""
    following = tile_start(position, prompt) + TILE
    return prompt if prompt >= LEAST_PROMPT and position < prompt < following else following


@dataclass(slots=True)
class Block:
    """New tokens at position ``start`` of the path ``lineage`` (which is resident up to there), to be stored in ``slots``.

    ``prompt``: where the prompt of their path ends; 0 if it has none.
    """

    lineage: list[Segment]
    start: int
    tokens: list[int]
    slots: list[int]
    logits_at: list[int] = field(default_factory=list)  # rows of the block whose logits are wanted
    prompt: int = 0


class Piece(NamedTuple):
    """Rows of one block between two seams."""

    block: Block
    row: int  # number of its first row in the pass
    start: int  # position of that
    slots: list[int]
    tile: int  # the last seam of its path before it: what comes before may be shared with others

    @property
    def in_prompt(self) -> bool:
        """Whether its rows are the prompt's own."""
        return self.start < self.block.prompt

    def context(self, first: int, stop: int) -> tuple[list[int], list[int]]:
        """Slots and positions of what is kept of the ancestors' tokens at positions ``first`` to ``stop``."""
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
    """``C`` sets of ``T`` keys, each seen by ``P`` pieces of a group."""

    pieces: slice | Tensor  # [C * P] index into the group's pieces; padding repeats one
    sets: int  # C
    slots: slice | Tensor  # [C * T]
    positions: Tensor  # [C, T]; FAR where padded
    hides: bool  # whether some keys are hidden from some rows, whatever the window
    members: slice | Tensor  # the pieces without padding
    real: Tensor | None = None  # which of the C * P those are; None: all
    step: int = TILE  # keys of one product of weights and values
    biases: dict[int | None, Tensor | None] = field(default_factory=dict)

    def rows(self, each: int) -> int:
        """Rows of a set, of ``each`` of a piece."""
        pieces = self.pieces.stop - self.pieces.start if isinstance(self.pieces, slice) else len(self.pieces)
        return pieces // self.sets * each

    def bias(self, window: int | None, queries: Tensor, end: int, dtype: torch.dtype) -> Tensor | None:
        """Additive mask ``[C, P, 1, R, T]`` under a window counted in positions; None if all is visible.

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
    """``B`` pieces of at most ``R`` rows that are attended together."""

    rows: slice | Tensor  # [B * R] index into the pass's rows; padding repeats the first row of a piece
    valid: Tensor | None  # which of them are real; None: all
    real: slice | Tensor  # those, as index into the pass's rows
    queries: Tensor  # [B, R] positions
    end: int  # one past the last position
    parts: list[KeySet]  # in the order of positions; the last one is private


@dataclass(slots=True)
class Plan:
    """Everything the model and the attention function need for one pass of ``Q`` rows.

    The first ``count`` are the blocks' rows; the others are there for the sake of alignment and are stored nowhere.
    """

    ids: Tensor  # [1, Q]
    positions: Tensor  # [1, Q]
    slots: Tensor  # [count]
    logits_at: Tensor  # [n] rows whose logits are wanted
    blocks: list[Block]
    groups: list[PieceGroup]

    @property
    def count(self) -> int:
        """Rows of the blocks."""
        return len(self.slots)

    def pad(self, rows: int) -> None:
        """Repeat the last row until there are ``rows``."""
        missing = rows - self.ids.shape[1]
        if missing > 0:
            self.ids = torch.cat([self.ids, self.ids[:, -1:].expand(1, missing)], 1)
            self.positions = torch.cat([self.positions, self.positions[:, -1:].expand(1, missing)], 1)
