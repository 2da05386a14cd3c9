"""Copies the KV of a run of tokens from a prompt (the reference) into a prompt variant (the branch).

::

    reference   h h h  a a a a  x x x x x x x x  b b b         h: the common prefix; x: the longest common run after it
    branch      h h h  c c      x x x x x x x x  d d d d d     h and x are copied; c, d and the first rows of x are computed

This is an approximation: the KV of ``x`` was computed after ``a``, not after ``c``. Keys are rotated to their new positions;
values do not depend on positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import torch

from rksc_tot.cache.arena import gather
from rksc_tot.cache.kv_budget.payer import Payer
from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.cache.segment import Segment
from rksc_tot.core.ledger import Ledger
from rksc_tot.engine.attention.plan import Block
from rksc_tot.engine.jobs.layer_readers import StateKeeper
from rksc_tot.engine.model.forward import Forward
from rksc_tot.engine.transformers_engine.rope_shift import RopeShift


class Overlap(NamedTuple):
    """The tokens that a branch shares with a reference.

    Attributes
    ----------
    head
        Length of the common prefix.
    source, target
        Start of the common run in the reference and in the branch.
    length
        Length of the common run.
    """

    head: int
    source: int
    target: int
    length: int

    def after(self, tokens: int) -> Overlap:
        """The overlap without the first ``tokens`` of the run."""
        return self._replace(source=self.source + tokens, target=self.target + tokens, length=self.length - tokens)

    @property
    def copied(self) -> int:
        """Tokens of the branch whose KV is copied."""
        return self.head + self.length


def overlap(reference: Sequence[int], branch: Sequence[int]) -> Overlap:
    """The common prefix and the longest common run after it (the first among equals). Lengths may be 0.

    The last token of the branch is never part of the overlap, so at least one token is computed.
    """
    most = min(len(reference), len(branch) - 1)
    head = next((i for i in range(most) if reference[i] != branch[i]), most)
    matcher = SequenceMatcher(None, reference, branch, autojunk=False)
    found = matcher.find_longest_match(head, len(reference), head, len(branch) - 1)
    return Overlap(head, found.a, found.b, found.size)


@torch.inference_mode()
def copy_shared(
    forward: Forward,
    tree: PrefixTree,
    reference: Segment,
    branch: Segment,
    shared: Overlap,
    rotation: RopeShift,
    payer: Payer | None = None,
    limit: int | None = None,
) -> None:
    """Give ``branch`` slots for all its tokens, and copy the KV of the shared ones from a resident ``reference``.

    ``payer``: the account that pays for the slots. ``limit``: most tokens that may be resident on it.

    Raises
    ------
    CacheError
        If there is no room.
    """
    slots = tree.room.allocate(len(branch.tokens), payer, limit)
    tree.residency.store(branch, slots, payer)
    forward.arena.reserve(tree.residency.pool.extent)
    held = [slot for segment in reference.lineage() for slot in segment.kv.slots]

    def index(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=forward.device)

    source = index([*range(shared.head), *range(shared.source, shared.source + shared.length)])
    target = index([*range(shared.head), *range(shared.target, shared.target + shared.length)])
    read, write = index(held)[source], index(slots)[target]
    for layer in sorted(forward.arena.keys):
        keys, values = (gather(part, read) for part in forward.arena.read(layer))  # [Hk, n, D]
        forward.arena.write(layer, rotation.move(layer, keys, source, target), values, write)


def compute_rest(
    forward: Forward, tree: PrefixTree, branch: Segment, shared: Overlap, max_rows: int, ledger: Ledger
) -> None:
    """Compute the tokens of ``branch`` that were not copied, at most ``max_rows`` a pass, and book them.

    Sets the logits at the end of ``branch`` and, if the model allows reads between layers, the hidden states of its last token.
    """
    gaps = (range(shared.head, shared.target), range(shared.target + shared.length, len(branch.tokens)))
    pieces = [range(at, min(at + max_rows, gap.stop)) for gap in gaps for at in range(gap.start, gap.stop, max_rows)]
    while pieces:
        piece = [pieces.pop(0)]
        while pieces and sum(map(len, piece)) + len(pieces[0]) <= max_rows:
            piece.append(pieces.pop(0))
        blocks = [
            Block([branch], p.start, branch.tokens[p.start : p.stop], branch.kv.slots[p.start : p.stop]) for p in piece
        ]
        rows = sum(map(len, piece))
        keeper = None
        if not pieces:
            blocks[-1].logits_at = [len(piece[-1]) - 1]
            keeper = StateKeeper([rows - 1], [branch]) if forward.lens else None
        plan = forward.plan(blocks)
        logits = forward.run(plan, tree.residency.pool.extent, [keeper] if keeper else [])
        if not pieces:
            branch.logits = logits[0].clone()
        if keeper:
            keeper.hand_out()
        ledger.book_passes(1, tree.residency.pool.used * forward.arena.bytes_per_row)
        ledger.book_rows(rows, rows, decoded=False)
