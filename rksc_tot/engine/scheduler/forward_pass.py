"""One forward pass: schedule rows for waiting jobs, compute them, book them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from torch import Tensor

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.cache.segment_kv import KVState
from rksc_tot.core.errors import EngineError
from rksc_tot.engine.attention.plan import Block
from rksc_tot.engine.jobs.job import ComputedRows, Job
from rksc_tot.engine.jobs.layer_readers import LabelReader, LayerQuestion, StateKeeper
from rksc_tot.engine.kv.offloading import Restorer
from rksc_tot.engine.model.forward import Forward
from rksc_tot.engine.model.info import broken_weights
from rksc_tot.engine.model.layer_hooks import LayerHook


class Computed(NamedTuple):
    """The result of a pass.

    Attributes
    ----------
    logits
        Logits ``[n, V]`` of the blocks' ``ends``, in order.
    broken
        Blocks whose logits or label probabilities are not finite. Their KV is dropped.
    """

    logits: Tensor
    broken: list[ScheduledBlock]


class ScheduledRows(NamedTuple):
    """The rows of a block that belong to one segment."""

    segment: Segment
    slots: list[int]
    new: int  # number of rows whose KV was never stored before
    ever_computed: int  # ``segment.kv.ever_computed`` before the pass
    before: KVState | None  # state of the segment's KV, if these rows overwrite part of it


class ScheduledBlock(NamedTuple):
    """A block of rows of one path.

    Attributes
    ----------
    block
        The rows as the forward pass sees them.
    job
        The job that pays.
    rows
        Number of rows.
    ends
        Segments whose next-token logits the pass returns.
    parts
        The stored rows, by segment.
    """

    block: Block
    job: Job
    rows: int
    ends: list[Segment]
    parts: list[ScheduledRows]


def schedule(
    tree: PrefixTree,
    job: Job,
    tip: Segment,
    most: int,
    missing: list[tuple[Segment, int]],
    awaited: Collection[Segment],
    limit: int | None = None,
    restorer: Restorer | None = None,
) -> ScheduledBlock:
    """Schedule the next rows, at most ``most``, of the path that ends at ``tip``. They count as stored from now on, so that later
    blocks of the same pass may attend to them.

    Logits are also returned for segments of the path that a job waits for or that a handle holds. They are not returned for a
    question that is read between layers, since its rows may leave the pass. If the whole path is resident, its last row is
    computed again, since KV alone gives no logits.

    Parameters
    ----------
    tree, job, tip
        The path, and the job that pays.
    most
        The most rows.
    missing
        The missing part of the path.
    awaited
        Segments that jobs wait for.
    limit
        Most tokens that may be resident on the job's account; None: no limit.
    restorer
        Copies offloaded KV back where that is cheaper than computing it.

    Raises
    ------
    AccountFull
        If the account may hold no more KV.
    CacheError
        If there is no room.
    """
    changes = tree.residency.changes
    first_absent = next((segment for segment, _ in missing if not segment.resident), None)
    if first_absent is not None:  # the only one that may be stored in part
        tree.split_by_payer(first_absent, job.payer)
    if restorer is not None:
        missing = missing if tree.residency.changes == changes else tree.residency.missing(tip, job.exact)
        restorer.fetch(job, missing, limit)
    missing = missing if tree.residency.changes == changes else tree.residency.missing(tip, job.exact)
    run = _run(missing) or [(tip, len(tip.tokens) - 1)]
    start = run[0][0].start + run[0][1]
    count = left = min(most, run[-1][0].end - start)
    pieces: list[tuple[Segment, range, dict[int, int]]] = []  # rows of a segment, and the slots of rows that have one
    for segment, first in run:
        rows = range(first, min(len(segment.tokens), first + left))
        if rows:
            pieces.append((segment, rows, segment.kv.slots_of(rows)))
            left -= len(rows)
    fresh = count - sum(len(has) for *_, has in pieces)
    slots = tree.room.allocate(fresh, job.account, limit)
    made = ScheduledBlock(Block(tip.lineage(), start, [], [], [], job.prompt_end), job, count, [], [])
    for segment, rows, has in pieces:
        own = [has[n] if n in has else slots.pop(0) for n in rows] if has else slots[: len(rows)]
        if not has:
            del slots[: len(rows)]
        before, once = segment.kv.state() if rows.start < segment.kv.computed else None, segment.kv.ever_computed
        new = tree.residency.store(segment, own, job.payer, rows.start)
        made.parts.append(ScheduledRows(segment, own, new, once, before))
        made.block.slots += own
        made.block.tokens += segment.tokens[rows.start : rows.stop]
        stays = job.leaves_from is None or segment.end <= job.leaves_from
        if stays and rows.stop == len(segment.tokens) and (segment is tip or segment.handles or segment in awaited):
            made.ends.append(segment)
            made.block.logits_at.append(len(made.block.tokens) - 1)
    return made


def _run(missing: list[tuple[Segment, int]]) -> list[tuple[Segment, int]]:
    """The first missing segment, and those that follow without a gap."""
    stop = next(
        (n for n in range(1, len(missing)) if missing[n][1] or missing[n][0].parent is not missing[n - 1][0]), None
    )
    return missing[:stop]


def not_numbers(forward: Forward) -> EngineError:
    """The error for jobs whose logits are not finite. It names weights that are not."""
    what = "the model's logits are not numbers (NaN or infinite)"
    if broken := broken_weights(forward.original):
        return EngineError(f"{what}: {broken}", hint="load a whole checkpoint")
    return EngineError(what, hint="try dtype float32")


def compute(forward: Forward, tree: PrefixTree, blocks: Sequence[ScheduledBlock]) -> Computed:
    """Run one pass over all blocks, hand the logits to their segments, and book the rows.

    If the pass raises, no row of it stays stored or booked, and the exception is raised again. Questions that are read between
    layers get their answers. Rows that left before the last layer are not stored.
    """
    questions = _layer_questions(blocks)
    keeper = _state_keeper(blocks)
    hooks: list[LayerHook] = [*([LabelReader(forward.open_lens(), list(questions.values()))] if questions else []),
                               *([keeper] if keeper else [])]  # fmt: skip
    try:
        plan = forward.plan([made.block for made in blocks])
        logits = forward.run(plan, tree.residency.pool.extent, hooks)
    except BaseException:
        undo_schedule(tree, blocks)
        raise
    if keeper:
        keeper.hand_out()
    finite = iter(logits.amax(-1).isfinite().tolist() if logits.numel() else ())
    row, broken = 0, []
    for n, made in enumerate(blocks):
        for segment in made.ends:
            segment.logits = logits[row].clone() if segment.handles else logits[row]
            row += 1
        sound = [next(finite) for _ in made.ends]
        if not all(sound) or (n in questions and questions[n].broken):
            broken.append(made)
    held = tree.residency.pool.used * forward.arena.bytes_per_row
    for ledger in {id(made.job.account.ledger): made.job.account.ledger for made in blocks}.values():
        ledger.book_passes(1, held)
    for n, made in enumerate(blocks):
        made.job.book(
            [ComputedRows(part.segment.start, len(part.slots), part.new) for part in made.parts], _exact(made)
        )
        if n in questions:
            if questions[n].left:
                _undo_parts(tree, [part for part in made.parts if part.segment.start >= (made.job.leaves_from or 0)])
            if not questions[n].broken:
                made.job.answer(questions[n])
    for made in broken:
        _drop_not_finite(tree, forward, made)
    return Computed(logits, broken)


def _drop_not_finite(tree: PrefixTree, forward: Forward, made: ScheduledBlock) -> None:
    """Drop the KV of a block's rows, or of the first segment of their path whose KV is not finite."""
    written = {part.segment for part in made.parts}
    for segment in made.block.lineage:
        if segment in written or not forward.arena.finite(segment.kv.slots):
            tree.evictor.invalidate(segment)
            return


def _exact(made: ScheduledBlock) -> bool:
    """Whether the last row, and so every row, was computed from the full KV of its path."""
    last = made.parts[-1].segment
    return last.start + last.kv.exact_tokens >= made.block.start + made.rows


def undo_schedule(tree: PrefixTree, blocks: Sequence[ScheduledBlock]) -> None:
    """Undo the scheduling of blocks that will not be computed."""
    for made in reversed(blocks):
        _undo_parts(tree, made.parts)


def _undo_parts(tree: PrefixTree, parts: Sequence[ScheduledRows]) -> None:
    """Undo the storing of the last parts of a block."""
    for part in reversed(parts):
        if part.before is None:
            tree.residency.undo_store(part.segment, len(part.slots), part.ever_computed)
        else:
            tree.residency.undo_overwrite(part.segment, part.before)


def _layer_questions(blocks: Sequence[ScheduledBlock]) -> dict[int, LayerQuestion]:
    """The questions read between layers whose last row is in this pass, by the index of their block."""
    found: dict[int, LayerQuestion] = {}
    row = 0
    for n, made in enumerate(blocks):
        job, end = made.job, row + made.rows
        if job.leaves_from is not None and made.block.start + made.rows == job.base.end:
            first = row + max(0, job.leaves_from - made.block.start)
            if question := job.layer_question(range(first, end), _exact(made)):
                found[n] = question
        row = end
    return found


def _state_keeper(blocks: Sequence[ScheduledBlock]) -> StateKeeper | None:
    """A hook that keeps the hidden states of all rows that give logits; None if no job needs them."""
    if not any(made.job.keeps_states for made in blocks):
        return None
    rows: list[int] = []
    first = 0
    for made in blocks:
        rows += [first + at for at in made.block.logits_at]
        first += made.rows
    return StateKeeper(rows, [segment for made in blocks for segment in made.ends])
