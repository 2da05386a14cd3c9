"""Taking over the KV of a run of tokens that another prompt holds under other wording.

::

    reference   h h h  a a a a  x x x x x x x x  b b b         h: the common head, as it stands; x: the longest common run
    branch      h h h  c c      x x x x x x x x  d d d d d     c, d and the first rows of x are computed, the rest taken over

What is taken over was computed after ``a``, so it is not what the branch alone would give: an approximation. Keys are turned
to their new positions; values have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import torch

from rksc_tot.cache.arena import gather
from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.cache.segment import Payer, Segment
from rksc_tot.core.ledger import Ledger
from rksc_tot.engine.attention.plan import Block
from rksc_tot.engine.jobs.layer_readers import StateKeeper
from rksc_tot.engine.model.forward import Forward
from rksc_tot.engine.transformers_engine.rope_shift import RopeShift


class Overlap(NamedTuple):
    """What a branch has in common with a reference: ``head`` first tokens, and ``length`` tokens from ``source`` in the
    reference and from ``target`` in the branch on.
    """

    head: int
    source: int
    target: int
    length: int

    def after(self, tokens: int) -> Overlap:
        """The same without the first ``tokens`` of the run."""
        return self._replace(source=self.source + tokens, target=self.target + tokens, length=self.length - tokens)

    @property
    def taken(self) -> int:
        """Tokens of the branch that are not computed."""
        return self.head + self.length


def overlap(reference: Sequence[int], branch: Sequence[int]) -> Overlap:
    """The common head and the longest common run after it, which leaves at least the last token of the branch to compute.

    Of equally long runs the first. Lengths may be 0.
    """
    most = min(len(reference), len(branch) - 1)
    head = next((i for i in range(most) if reference[i] != branch[i]), most)
    matcher = SequenceMatcher(None, reference, branch, autojunk=False)
    found = matcher.find_longest_match(head, len(reference), head, len(branch) - 1)
    return Overlap(head, found.a, found.b, found.size)


@torch.inference_mode()
def take_over(
    forward: Forward,
    tree: PrefixTree,
    reference: Segment,
    branch: Segment,
    shared: Overlap,
    rotation: RopeShift,
    payer: Payer | None = None,
) -> None:
    """Give ``branch`` slots for all its tokens, and those of head and run the KV of a resident ``reference``, on the account of
    ``payer``.

    Raises
    ------
    CacheError
        If there is no room.
    """
    tree.make_room(len(branch.tokens))
    slots = tree.pool.allocate(len(branch.tokens))
    tree.store(branch, slots, payer)
    forward.arena.reserve(tree.pool.extent)
    held = [slot for segment in reference.lineage() for slot in segment.slots]

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
    """Compute the tokens of ``branch`` that were not taken over, at most ``max_rows`` a pass, and book them.

    It is given the logits at its end and, where the model's layers can be looked at, the hidden states of its last token.
    """
    gaps = (range(shared.head, shared.target), range(shared.target + shared.length, len(branch.tokens)))
    pieces = [range(at, min(at + max_rows, gap.stop)) for gap in gaps for at in range(gap.start, gap.stop, max_rows)]
    while pieces:
        piece = [pieces.pop(0)]
        while pieces and sum(map(len, piece)) + len(pieces[0]) <= max_rows:
            piece.append(pieces.pop(0))
        blocks = [
            Block([branch], p.start, branch.tokens[p.start : p.stop], branch.slots[p.start : p.stop]) for p in piece
        ]
        rows = sum(map(len, piece))
        compressor = None
        if not pieces:
            blocks[-1].logits_at = [len(piece[-1]) - 1]
            compressor = StateKeeper([rows - 1], [branch]) if forward.lens else None
        plan = forward.plan(blocks)
        logits = forward.run(plan, tree.pool.extent, [compressor] if compressor else [])
        if not pieces:
            branch.logits = logits[0].clone()
        if compressor:
            compressor.settle()
        ledger.forward_passes += 1
        ledger.prefill_tokens += rows
        ledger.distinct_tokens += rows
        ledger.context_computed += rows
    ledger.peak_kv_bytes = max(ledger.peak_kv_bytes, tree.pool.used * forward.arena.bytes_per_row)
