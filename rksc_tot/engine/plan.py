"""One forward pass: which tokens, at which positions, into which slots, seeing which slots.

A *block* is a run of new tokens at the end of one path: a chunk of a prompt, one sampled token, a verifier's question.
Blocks that share a long enough run of ancestors form a *group*; the shared part is read once for all of them. The rest of
a block's ancestors and the block itself are its *private* keys, padded to the longest of the group.

::

    group:   shared slots  s0 s1 s2 …          one product for all rows of the group
             block 0       p p p · │ r r       private ancestors, padded │ own rows, causal
             block 1       p p p p │ r r
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rksc_tot.cache.arena import is_run
from rksc_tot.cache.prefix_tree import Segment

MIN_SHARED = 32  # below this, reading the ancestors with each block is cheaper than a product of its own


@dataclass(slots=True)
class Block:
    """New tokens after the end of ``lineage`` (whose slots are all resident), to be stored in ``slots``."""

    lineage: list[Segment]
    start: int
    tokens: list[int]
    slots: list[int]
    logits_at: list[int] = field(default_factory=list)  # rows of the block whose logits are wanted

    def context(self, skip: int = 0) -> list[int]:
        """Slots of the ancestors' tokens from position ``skip`` to ``start``."""
        found: list[int] = []
        for segment in self.lineage:
            if segment.start >= self.start:
                break
            if segment.end > skip:
                found += segment.slots[max(0, skip - segment.start) : self.start - segment.start]
        return found


@dataclass(slots=True)
class Group:
    """Blocks that are attended together. ``B`` blocks of at most ``R`` rows, ``S`` shared and ``T`` private keys."""

    rows: slice | Tensor  # [B * R] index into the pass's rows; padding repeats row 0 of the block
    valid: Tensor | None  # which of them are real; None: all
    real: slice | Tensor  # the real ones' index into the pass's rows
    shared: slice | Tensor | None  # S slots
    shared_positions: Tensor  # [S]
    private: slice | Tensor  # [B * T] slots
    query_positions: Tensor  # [B, R]
    bias: Tensor  # [B, 1, R, T] 0 where visible, -inf elsewhere
    private_positions: Tensor  # [B, T]
    end: int  # one past the last position
    fresh: bool  # one block with nothing before it: plain causal attention
    windows: dict[int, tuple[Tensor | None, Tensor]] = field(default_factory=dict)

    def masks(self, window: int | None) -> tuple[Tensor | None, Tensor]:
        """Additive masks ``[B, 1, R, S]`` (None: all visible) and ``[B, 1, R, T]`` under a window counted in positions."""
        if window is None or window >= self.end:
            return None, self.bias
        if window not in self.windows:
            first = self.query_positions[:, None, :, None] - window  # the last position that is out of sight
            shared = None
            if self.shared is not None:
                hidden = self.shared_positions <= first
                shared = torch.zeros_like(hidden, dtype=self.bias.dtype).masked_fill_(hidden, float("-inf"))
            hidden = self.private_positions[:, None, None, :] <= first
            self.windows[window] = (shared, self.bias.masked_fill(hidden, float("-inf")))
        return self.windows[window]


@dataclass(slots=True)
class Plan:
    """Everything the model and the attention function need for one pass of ``Q`` rows."""

    ids: Tensor  # [1, Q]
    positions: Tensor  # [1, Q]
    slots: Tensor  # [Q]
    logits_at: Tensor  # [n] rows whose logits are wanted
    blocks: list[Block]
    groups: list[Group]


def build(blocks: Sequence[Block], device: torch.device, dtype: torch.dtype) -> Plan:
    """The plan that computes ``blocks`` together. No block may be an ancestor of another."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    wanted: list[int] = []
    first_row: list[int] = []
    for block in blocks:
        first_row.append(len(ids))
        wanted += [len(ids) + i for i in block.logits_at]
        ids += block.tokens
        slots += block.slots
        positions += range(block.start, block.start + len(block.tokens))
    groups = [
        _group([blocks[i] for i in members], [first_row[i] for i in members], shared, device, dtype)
        for members, shared in _gatherings(blocks)
    ]

    def vector(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    return Plan(vector(ids)[None], vector(positions)[None], vector(slots), vector(wanted), list(blocks), groups)


def _gatherings(blocks: Sequence[Block]) -> list[tuple[list[int], list[Segment]]]:
    """Which blocks to attend together, in order, and the segments they share: same first segment, similar length."""
    by_kind: dict[tuple[int, int], list[int]] = {}
    for i, block in enumerate(blocks):
        rows = (len(block.tokens) - 1).bit_length()
        by_kind.setdefault((id(block.lineage[0]) if block.lineage else 0, rows), []).append(i)
    found: list[tuple[list[int], list[Segment]]] = []
    small: dict[int, list[int]] = {}
    for (_, rows), members in by_kind.items():
        shared = _common([blocks[i] for i in members])
        if shared and shared[-1].end >= MIN_SHARED:
            found.append((members, shared))
        else:
            small.setdefault(rows, []).extend(members)
    return found + [(sorted(members), []) for members in small.values()]


def _common(blocks: Sequence[Block]) -> list[Segment]:
    """Leading segments that lie wholly before every block and are the same for all."""
    shared: list[Segment] = []
    for segment in blocks[0].lineage:
        depth = len(shared)
        same = all(len(b.lineage) > depth and b.lineage[depth] is segment and b.start >= segment.end for b in blocks)
        if not same:
            break
        shared.append(segment)
    return shared


def _group(
    blocks: list[Block], first_row: list[int], shared: list[Segment], device: torch.device, dtype: torch.dtype
) -> Group:
    skip = shared[-1].end if shared else 0
    contexts = [block.context(skip) for block in blocks]
    longest, width = max(map(len, contexts)), max(len(b.tokens) for b in blocks)
    far = 1 << 30
    rows: list[int] = []
    valid: list[int] = []
    private: list[int] = []
    key_positions: list[list[int]] = []
    query_positions: list[list[int]] = []
    for n, (block, context) in enumerate(zip(blocks, contexts, strict=True)):
        count, pad, tail = len(block.tokens), longest - len(context), width - len(block.tokens)
        rows += [*range(first_row[n], first_row[n] + count), *[first_row[n]] * tail]
        valid += range(n * width, n * width + count)
        private += [*context, *[block.slots[0]] * pad, *block.slots, *[block.slots[0]] * tail]  # padded with its own
        key_positions.append(
            [*range(skip, block.start), *[far] * pad, *range(block.start, block.start + count), *[far] * tail]
        )
        query_positions.append([*range(block.start, block.start + count), *[block.start] * tail])
    keys_t = torch.tensor(key_positions, device=device)
    queries_t = torch.tensor(query_positions, device=device)
    later = keys_t[:, None, None, :] > queries_t[:, None, :, None]  # [B, 1, R, T]
    shared_slots = [slot for segment in shared for slot in segment.slots]
    padded = len(valid) < len(rows)
    return Group(
        rows=_as_index(rows, device),
        valid=torch.tensor(valid, device=device) if padded else None,
        real=_as_index([rows[i] for i in valid], device),
        shared=_as_index(shared_slots, device) if shared else None,
        shared_positions=torch.arange(skip, device=device),
        private=_as_index(private, device),
        query_positions=queries_t,
        bias=torch.zeros(later.shape, dtype=dtype, device=device).masked_fill_(later, float("-inf")),
        private_positions=keys_t,
        end=max(block.start + len(block.tokens) for block in blocks),
        fresh=len(blocks) == 1 and blocks[0].start == 0,
    )


def _as_index(numbers: list[int], device: torch.device) -> slice | Tensor:
    """A slice where it will do: it makes a view."""
    return slice(numbers[0], numbers[-1] + 1) if is_run(numbers) else torch.tensor(numbers, device=device)
