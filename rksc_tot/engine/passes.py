"""One pass through the model: rows are claimed for waiting jobs, computed, and booked."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.engine.forward import Forward
from rksc_tot.engine.jobs import Job, Labelling
from rksc_tot.engine.plan import Block, build


class Part(NamedTuple):
    """Rows of a block that lie in one segment, whose KV they give it."""

    segment: Segment
    slots: list[int]
    stored_once: int  # of the segment before


@dataclass(slots=True)
class Claim:
    """A block of rows, the job that pays, what the rows store, and of which segments they give the next-token logits."""

    block: Block
    job: Job
    ends: list[Segment]
    parts: list[Part] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many."""
        return len(self.block.tokens)


def claim(tree: PrefixTree, job: Job, tip: Segment, most: int, awaited: Collection[Segment]) -> Claim:
    """The next rows, at most ``most``, on the way to the logits at ``tip``; their slots are allocated.

    Logits are taken on the way wherever somebody waits for them or a handle may want them. If the path is resident, its
    last row is computed again, since KV does not give logits.

    Raises
    ------
    CacheError
        If there is no room.
    """
    missing = tree.missing(tip)
    if not missing:
        return Claim(Block(tip.lineage(), tip.end - 1, [tip.tokens[-1]], [tip.slots[-1]], [0]), job, [tip])
    start = missing[0][0].start + missing[0][1]
    count = min(most, tip.end - start)
    tree.make_room(count)
    slots = tree.pool.allocate(count)
    made = Claim(Block(tip.lineage(), start, [], slots), job, [])
    for segment, first in missing:
        piece = segment.tokens[first : first + count - made.rows]
        if not piece:
            break
        made.parts.append(Part(segment, slots[made.rows : made.rows + len(piece)], segment.stored_once))
        made.block.tokens += piece
        if first + len(piece) == len(segment.tokens) and (segment.handles or segment in awaited):
            made.ends.append(segment)
            made.block.logits_at.append(made.rows - 1)
    return made


def compute(forward: Forward, tree: PrefixTree, claims: Sequence[Claim]) -> None:
    """Run one pass over all claims, hand the logits to their segments, and book the rows.

    If the pass fails, everything is as if it had not been tried, and the exception goes on.
    """
    new = [[tree.store(part.segment, part.slots) for part in made.parts] for made in claims]
    try:
        plan = build([made.block for made in claims], forward.device, forward.dtype)
        logits = forward.run(plan, tree.pool.extent)
    except BaseException:
        for made in reversed(claims):
            for part in reversed(made.parts):
                del part.segment.slots[len(part.segment.slots) - len(part.slots) :]
                part.segment.stored_once = part.stored_once
                tree.pool.free(part.slots)
        raise
    row = 0
    for made in claims:
        for segment in made.ends:
            segment.logits = logits[row].clone() if segment.handles else logits[row]
            row += 1
    held = tree.pool.used * forward.arena.bytes_per_row
    for ledger in {id(made.job.account.ledger): made.job.account.ledger for made in claims}.values():
        ledger.forward_passes += 1
        ledger.peak_kv_bytes = max(ledger.peak_kv_bytes, held)
    for made, firsts in zip(claims, new, strict=True):
        _book(made, firsts)


def _book(made: Claim, firsts: Sequence[int]) -> None:
    """Every row once. ``firsts``: how many rows of each part were stored for the first time ever."""
    job, ledger = made.job, made.job.account.ledger
    pieces = [(p.segment.start, len(p.slots), f) for p, f in zip(made.parts, firsts, strict=True)]
    for start, rows, first in pieces or [(made.block.start, 1, 0)]:
        if job.scratch_from is not None and start >= job.scratch_from:
            if isinstance(job, Labelling):
                ledger.verifier_tokens += rows
            else:
                ledger.proposal_tokens += rows
            continue
        ledger.prefill_tokens += rows
        ledger.distinct_tokens += first
        ledger.recomputed_tokens += rows - first
        if not job.decoding:
            ledger.context_computed += rows
