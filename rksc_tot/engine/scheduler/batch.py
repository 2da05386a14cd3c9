"""One pass through the model: rows are claimed for waiting jobs, computed, and booked."""

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
from rksc_tot.engine.model.layer_hooks import LayerHook


class Computed(NamedTuple):
    """The outcome of a pass.

    Attributes
    ----------
    logits
        ``[n, V]`` of all segments that the blocks end in, in order.
    broken
        The blocks for which the model gave no finite numbers. Their rows are dropped.
    """

    logits: Tensor
    broken: list[ScheduledBlock]


class ScheduledRows(NamedTuple):
    """Rows of a block that lie in one segment, whose KV they give it."""

    segment: Segment
    slots: list[int]
    new: int  # how many are stored for the first time ever
    ever_computed: int  # of the segment before
    before: KVState | None  # what the segment stored before, where these tokens are not its next ones


class ScheduledBlock(NamedTuple):
    """A block of rows of one path.

    Attributes
    ----------
    block
        What the forward pass needs to know of the rows.
    job
        The job that pays.
    rows
        How many rows there are.
    ends
        The segments whose next-token logits the rows give.
    parts
        What the rows store, segment by segment.
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
    """Schedule the next rows, at most ``most``, on the way to the logits at ``tip``. They count as stored from now on, so that
    later blocks of the same pass may attend to them.

    Logits are also taken at segments on the way that a job waits for or that a handle holds, but not at a question that is read
    between the layers: its rows may leave the pass. If the path is resident, its last row is computed again, since KV does not
    give logits.

    Parameters
    ----------
    tree, job, tip
        The path, and the job that pays.
    most
        The most rows.
    missing
        The part of the path that must be computed.
    awaited
        Segments that jobs wait for.
    limit
        How many tokens may be resident on the job's account afterwards; None: any number.
    restorer
        Copies missing KV back where that is cheaper than computing it.

    Raises
    ------
    AccountFull
        If the account may hold no more.
    CacheError
        If there is no room.
    """
    changes = tree.residency.changes
    for segment in [segment for segment, _ in missing if not segment.resident][:1]:  # only the first is stored in part
        tree.split_by_payer(segment, job.payer)
    if restorer is not None:
        missing = missing if tree.residency.changes == changes else tree.residency.missing(tip, job.exact)
        restorer.fetch(job, missing, limit)
    missing = missing if tree.residency.changes == changes else tree.residency.missing(tip, job.exact)
    run = _run(missing) or [(tip, len(tip.tokens) - 1)]
    start = run[0][0].start + run[0][1]
    count = left = min(most, run[-1][0].end - start)
    pieces: list[tuple[Segment, range, dict[int, int]]] = []  # tokens of a segment, and the slots that some have
    for segment, first in run:
        rows = range(first, min(len(segment.tokens), first + left))
        if rows:
            pieces.append((segment, rows, segment.kv.slots_of(rows)))
            left -= len(rows)
    fresh = count - sum(len(has) for *_, has in pieces)
    if limit is not None:
        tree.residency.make_room_within(fresh, limit, job.account)
    tree.residency.make_room(fresh)
    slots = tree.residency.pool.allocate(fresh)
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
    """The first of what is missing, and what follows without a gap."""
    stop = next(
        (n for n in range(1, len(missing)) if missing[n][1] or missing[n][0].parent is not missing[n - 1][0]), None
    )
    return missing[:stop]


def not_numbers() -> EngineError:
    """The error of a job whose logits are not finite."""
    return EngineError("the model's logits are not numbers (NaN or infinite)", hint="try dtype float32")


def compute(forward: Forward, tree: PrefixTree, claims: Sequence[ScheduledBlock]) -> Computed:
    """Run one pass over all blocks, hand the logits to their segments, and book the rows.

    If the pass raises, nothing of it is stored or booked, and the exception is raised again. Questions to the layers are
    answered; rows of theirs that left before the last layer are not stored.
    """
    asked = _asked(claims)
    keeper = _state_keeper(claims)
    hooks: list[LayerHook] = [*([LabelReader(forward.open_lens(), list(asked.values()))] if asked else []),
                               *([keeper] if keeper else [])]  # fmt: skip
    try:
        plan = forward.plan([made.block for made in claims])
        logits = forward.run(plan, tree.residency.pool.extent, hooks)
    except BaseException:
        give_up(tree, claims)
        raise
    if keeper:
        keeper.hand_out()
    finite = iter(logits.amax(-1).isfinite().tolist() if logits.numel() else ())
    row, broken = 0, []
    for n, made in enumerate(claims):
        for segment in made.ends:
            segment.logits = logits[row].clone() if segment.handles else logits[row]
            row += 1
        sound = [next(finite) for _ in made.ends]
        if not all(sound) or (n in asked and asked[n].broken):
            broken.append(made)
    held = tree.residency.pool.used * forward.arena.bytes_per_row
    for ledger in {id(made.job.account.ledger): made.job.account.ledger for made in claims}.values():
        ledger.book_passes(1, held)
    for n, made in enumerate(claims):
        made.job.book(
            [ComputedRows(part.segment.start, len(part.slots), part.new) for part in made.parts], _exact(made)
        )
        if n in asked:
            if asked[n].left:
                _take_back(tree, [part for part in made.parts if part.segment.start >= (made.job.leaves_from or 0)])
            if not asked[n].broken:
                made.job.answer(asked[n])
    for made in broken:
        _spoil(tree, forward, made)
    return Computed(logits, broken)


def _spoil(tree: PrefixTree, forward: Forward, made: ScheduledBlock) -> None:
    """Drop the KV of a block's rows, or of the first segment on their path whose KV is not finite."""
    written = {part.segment for part in made.parts}
    for segment in made.block.lineage:
        if segment in written or not forward.arena.finite(segment.kv.slots):
            tree.residency.invalidate(segment)
            return


def _exact(made: ScheduledBlock) -> bool:
    """Whether the last row, and so every row, was computed from the full KV of its path."""
    last = made.parts[-1].segment
    return last.start + last.kv.exact_tokens >= made.block.start + made.rows


def give_up(tree: PrefixTree, claims: Sequence[ScheduledBlock]) -> None:
    """Undo the scheduling of blocks that will not be computed."""
    for made in reversed(claims):
        _take_back(tree, made.parts)


def _take_back(tree: PrefixTree, parts: Sequence[ScheduledRows]) -> None:
    """Undo the storing of parts of one block, its last ones."""
    for part in reversed(parts):
        if part.before is None:
            tree.residency.undo_store(part.segment, len(part.slots), part.ever_computed)
        else:
            tree.residency.undo_overwrite(part.segment, part.before)


def _asked(claims: Sequence[ScheduledBlock]) -> dict[int, LayerQuestion]:
    """The questions read between the layers that end in this pass, by the number of their block."""
    found: dict[int, LayerQuestion] = {}
    row = 0
    for n, made in enumerate(claims):
        job, end = made.job, row + made.rows
        if job.leaves_from is not None and made.block.start + made.rows == job.base.end:
            first = row + max(0, job.leaves_from - made.block.start)
            if question := job.layer_question(range(first, end), _exact(made)):
                found[n] = question
        row = end
    return found


def _state_keeper(claims: Sequence[ScheduledBlock]) -> StateKeeper | None:
    """Keeps the hidden states of all rows that give logits, where a job asks for them; else None."""
    if not any(made.job.keeps_states for made in claims):
        return None
    rows: list[int] = []
    first = 0
    for made in claims:
        rows += [first + at for at in made.block.logits_at]
        first += made.rows
    return StateKeeper(rows, [segment for made in claims for segment in made.ends])
