"""The capability probe: finds out by experiment, never by name, what the loaded model can do."""

from __future__ import annotations

from collections.abc import Collection
from itertools import accumulate, pairwise, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.core.errors import UnsupportedModel
from rksc_tot.engine.attention.matmul import proved
from rksc_tot.engine.attention.plan import Block
from rksc_tot.engine.attention.vector_padding import GRAIN
from rksc_tot.engine.model import hf_compat as compat
from rksc_tot.engine.model.forward import Forward, Route
from rksc_tot.engine.model.info import broken_weights
from rksc_tot.engine.model.layer_hooks import Look
from rksc_tot.engine.model.logit_lens import find_lens
from rksc_tot.engine.model.onednn_linear import worth_packing
from rksc_tot.engine.model.tolerance import Paths, Tolerance, plain_logits, tolerance_of
from rksc_tot.policies.eviction.base import NoEviction

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TRUNK, STEPS = 12, ((3, 5), (4,), (2, 1, 3))  # tokens of a prompt, and of branches that grow in several passes
OTHER_ROWS = (0, 1, 2, 4, 7, 11, 15, 19)  # numbers of other rows of the batch while a path grows
CHANGING_ROPE = ("dynamic", "longrope")


class Capabilities(NamedTuple):
    """The capabilities of a model, as found by the probe.

    Attributes
    ----------
    route
        ``fast`` (registered attention) or ``mask`` (4D mask).
    difference
        Difference between the logits of a small tree and those of plain forward passes: in float32 the largest |Δlogit|, in
        half precision the root mean square of all Δlogits relative to that of the logits.
    tolerance
        The allowed difference, see :mod:`rksc_tot.engine.model.tolerance`.
    context
        Most tokens of a path.
    layers
        Decoder layers after which labels can be read and rows can leave a pass; 0 if neither works.
    batch_invariant
        Whether no bit of a row's logits depends on the other rows of its batch, or on how its path was divided into passes.
    notes
        Capabilities that were not found, and why.
    """

    route: Route
    difference: float
    tolerance: float
    context: int
    layers: int
    batch_invariant: bool
    notes: tuple[str, ...]


def probe(model: PreTrainedModel, arena: Arena, *, packed: bool | None = False) -> tuple[Forward, Capabilities]:
    """Decode a small tree by each route, compare it with plain passes, and keep the first route that agrees.

    ``packed``: whether linear layers are packed (see :mod:`rksc_tot.engine.model.onednn_linear`) for the tree, not for the
    plain passes; None: where packing is usually faster.

    Raises
    ------
    UnsupportedModel
        If neither route reproduces the plain passes, or half precision rounds too much to decide that. The message names the
        differences.
    """
    config = model.config.get_text_config()
    linear = sorted({k for k in getattr(config, "layer_types", None) or () if "attention" not in k or "linear" in k})
    if linear:
        raise UnsupportedModel(
            f"layers of kind {', '.join(linear)} carry a sequential state that cannot branch inside one forward pass",
            hint="use a model whose layers all attend",
        )
    forward = Forward(model, arena, packed=worth_packing(model) if packed is None else packed)
    return forward, examine(forward)


def examine(forward: Forward) -> Capabilities:
    """Find the capabilities of a model, and set its route and lens. All KV is dropped.

    Raises
    ------
    UnsupportedModel
        See :func:`probe`.
    """
    try:
        return _examined(forward)
    except UnsupportedModel as error:
        if broken := broken_weights(forward.original):
            raise UnsupportedModel(broken, hint="load a whole checkpoint") from error
        raise


def _examined(forward: Forward) -> Capabilities:
    config, arena = forward.model.config.get_text_config(), forward.arena
    context, notes = _context(config)
    paths = _sample_paths(config.vocab_size)
    if context < paths.tokens:
        raise UnsupportedModel(f"a context of {context} tokens is too short for a tree")
    compat.register()
    plain = plain_logits(forward, paths)
    tolerance = tolerance_of(forward, paths, plain)
    ran = False
    for route in ("fast", "mask"):
        try:
            forward.take(route)
            difference = tolerance.difference(_tree(forward, paths), plain)
        except Exception as error:  # a foreign model may raise anything: the route does not work
            notes.append(f"{route} route: {type(error).__name__}: {str(error)[:200]}")
            continue
        finally:
            arena.clear()
        ran = True
        if difference <= tolerance.limit:
            layers = _open_layers(forward, paths, plain, tolerance)
            notes += [forward.no_lens] * (not layers)
            if varies := _what_varies(forward, paths):
                notes.append(f"the last bits of a row may depend on the other rows of its batch: {varies}")
            return Capabilities(route, difference, tolerance.limit, context, layers, not varies, tuple(notes))
        notes.append(f"{route} route: {tolerance.describe(difference)}")
    raise UnsupportedModel(
        f"this model does not decode a tree as it decodes a sequence ({'; '.join(notes)})",
        hint=_advice(forward, rounds=ran and not tolerance.single),
    )


def _advice(forward: Forward, rounds: bool) -> str:
    """What to do about a model that is refused. ``rounds``: whether it may only round too much."""
    if getattr(forward.original, "hf_quantizer", None) is not None:
        return "quantised activations depend on the other rows of a pass: use a checkpoint with quantised weights only"
    if rounds:
        return "try float32, which rounds less"
    return "use a model with full or sliding-window attention and position ids"


def _open_layers(forward: Forward, paths: Paths, plain: list[Tensor], tolerance: Tolerance) -> int:
    """Layers after which labels can be read and rows can leave; 0 with a note of the reason if neither works."""
    route = forward.route
    try:
        forward.take("mask")
        forward.lens = find_lens(forward.model, paths.trunk)
        forward.take(route)
        difference = tolerance.difference(_tree_left_early(forward, paths), plain[1:])
        if not difference <= tolerance.limit:
            raise UnsupportedModel(f"no early exit: when some rows leave, {tolerance.describe(difference)}")
        return len(forward.lens.layers)
    except Exception as error:  # a foreign model may raise anything: no early exit
        known = isinstance(error, UnsupportedModel)
        forward.no_lens = str(error) if known else f"no early exit: {type(error).__name__}: {str(error)[:200]}"
        forward.lens = None
        return 0
    finally:
        forward.take(route)
        forward.arena.clear()


def _what_varies(forward: Forward, paths: Paths) -> str:
    """Why the last bits of a row may depend on the other rows of its batch; empty if proved not to on this processor."""
    if forward.device.type != "cpu" or forward.dtype != torch.float32:
        return "rows are summed in a fixed order on a CPU in float32 only"
    if forward.route != "fast":
        return "the mask route sums over the keys of all rows"
    if not forward.all_packed:
        return "oneDNN does not compute all products"
    try:
        varies = _depends_on_batch(forward, paths)
        keys, values = forward.arena.keys, forward.arena.values
        heads = {(keys[layer].shape[-1], values[layer].shape[-1]) for layer in keys}
    finally:
        forward.arena.clear()
    if not all(proved(of_key, of_value) for of_key, of_value in heads):
        return "on this processor the bits of attention's products depend on their sizes"
    return "the bits of a row changed with the other rows of its batch" if varies else ""


def _depends_on_batch(forward: Forward, paths: Paths) -> bool:
    """Whether a path that grows token by token, beside more and more other rows, has other logits than copies computed whole.

    There are enough copies for torch to divide the pointwise work of the widest layer among threads.
    """
    path = paths.trunk + paths.branches[0]
    copies = max(3, -(-2 * GRAIN // (len(path) * max(1, forward.width))))
    tree = PrefixTree(SlotPool(len(path) * (copies + 1) + sum(OTHER_ROWS)), NoEviction())

    def block(start: int, stop: int, root: Segment, first_wanted: int) -> Block:
        segment = tree.walk(root, path[:stop])
        slots = tree.residency.pool.allocate(stop - start)
        tree.residency.store(segment, slots)
        wanted = list(range(first_wanted - start, stop - start))
        return Block(segment.lineage(), start, path[start:stop], slots, wanted)

    grown: list[Tensor] = []
    own = tree.private_root()
    for n, start in enumerate((0, *range(TRUNK, len(path)))):
        stop = max(TRUNK, start + 1)
        blocks = [block(start, stop, own, stop - 1)]
        if rows := OTHER_ROWS[n % len(OTHER_ROWS)]:
            blocks.insert(0, block(0, rows, tree.private_root(), rows))
        grown += forward.run(forward.plan(blocks), tree.residency.pool.extent)
    whole = [block(0, len(path), tree.private_root(), TRUNK - 1) for _ in range(copies)]
    found = forward.run(forward.plan(whole), tree.residency.pool.extent)
    return not found.equal(torch.stack(grown).repeat(copies, 1))


class _FirstRowsLeave:
    """A layer hook by which the first ``rows`` leave after the first layer."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def after(self, layer: int, look: Look) -> Collection[int]:
        return range(self.rows) if layer == 1 else ()


def _tree_left_early(forward: Forward, paths: Paths) -> list[Tensor]:
    """The logits of all branches except the first, in one pass that the first branch leaves early."""
    tree = PrefixTree(SlotPool(paths.tokens), NoEviction())
    trunk = tree.walk(tree.origin, paths.trunk)
    blocks: list[Block] = []
    for segment in (trunk, *(tree.walk(trunk, branch) for branch in paths.branches)):
        slots = tree.residency.pool.allocate(len(segment.tokens))
        tree.residency.store(segment, slots)
        blocks.append(Block(segment.lineage(), segment.start, segment.tokens, slots, list(range(len(slots)))))
    forward.run(forward.plan(blocks[:1]), tree.residency.pool.extent)
    blocks[1].logits_at = []
    hook = _FirstRowsLeave(len(blocks[1].tokens))
    logits = forward.run(forward.plan(blocks[1:]), tree.residency.pool.extent, [hook])
    return list(logits.split([len(branch) for branch in paths.branches[1:]]))


def _context(config: Any) -> tuple[int, list[str]]:
    """The longest path on which RoPE does not change with length, and notes on limits."""
    context = getattr(config, "max_position_embeddings", None) or 1 << 20
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {str(r.get("rope_type")) for r in (rope, *rope.values()) if isinstance(r, dict)}
    changing = sorted(kinds & set(CHANGING_ROPE))
    original = getattr(config, "original_max_position_embeddings", None) or rope.get("original_max_position_embeddings")
    if not changing:
        return int(context), []
    context = int(original or context)
    return context, [
        f"{changing[0]} RoPE changes with length: paths end at {context} tokens, within which it is constant"
    ]


def _sample_paths(vocabulary: int) -> Paths:
    lengths = [sum(steps) for steps in STEPS]
    count = TRUNK + sum(lengths)
    ids = [1 + 1_000_003 * i % (vocabulary - 1) for i in range(count)]  # a prime: no two branches begin alike
    ends = [TRUNK, *(TRUNK + end for end in accumulate(lengths))]
    return Paths(ids[:TRUNK], [ids[start:end] for start, end in pairwise(ends)])


def _tree(forward: Forward, paths: Paths) -> list[Tensor]:
    """Logits of the tokens of each branch, from one trunk and all branches grown together."""
    tree = PrefixTree(SlotPool(paths.tokens), NoEviction())
    trunk = tree.walk(tree.origin, paths.trunk)
    tree.residency.pin(trunk)
    slots = tree.residency.pool.allocate(TRUNK)
    tree.residency.store(trunk, slots)
    forward.run(forward.plan([Block(trunk.lineage(), 0, trunk.tokens, slots, [TRUNK - 1])]), TRUNK)
    growing = [tree.walk(trunk, branch) for branch in paths.branches]
    found: list[list[Tensor]] = [[] for _ in growing]
    for counts in zip_longest(*STEPS, fillvalue=0):
        blocks, owners = [], []
        for segment, rows, count in zip(growing, found, counts, strict=True):
            if count:
                done = len(segment.kv.slots)
                slots = tree.residency.pool.allocate(count)
                tree.residency.store(segment, slots)
                tokens = segment.tokens[done : done + count]
                blocks.append(Block(segment.lineage(), segment.start + done, tokens, slots, list(range(count))))
                owners += [rows] * count
        for rows, logits in zip(owners, forward.run(forward.plan(blocks), tree.residency.pool.extent), strict=True):
            rows.append(logits)
    return [torch.stack(rows) for rows in found]
