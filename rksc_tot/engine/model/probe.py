"""What the loaded model can do, found out by trying, never by its name."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.cache.slot_pool import SlotPool
from rksc_tot.core.errors import UnsupportedModel
from rksc_tot.engine.attention.matmul import proved
from rksc_tot.engine.attention.plan import Block
from rksc_tot.engine.attention.vector_padding import GRAIN
from rksc_tot.engine.model import hf_compat as compat
from rksc_tot.engine.model.forward import Forward, Route
from rksc_tot.engine.model.layer_hooks import Look
from rksc_tot.engine.model.logit_lens import find_lens
from rksc_tot.engine.model.onednn_linear import worth_packing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TRUNK, BRANCHES = 12, ((3, 5), (4,), (2, 1, 3))  # a prompt, and ragged branches grown in several passes
COMPANY = (0, 1, 2, 4, 7, 11, 15, 19)  # rows beside those of a path that grows
CHANGING_ROPE = ("dynamic", "longrope")


class Capabilities(NamedTuple):
    """``route``: ``fast`` (registered attention) or ``mask`` (4D mask). ``difference``: largest |Δlogit| of a small tree
    against plain forward passes. ``context``: most tokens of a path. ``layers``: decoder layers after which a pass can be
    looked at and left, 0 if it cannot. ``batch_invariant``: whether a row's logits are the same to the last bit whatever else
    is in the pass and however its path was cut into passes. ``notes``: what does not work, and why.
    """

    route: Route
    difference: float
    tolerance: float
    context: int
    layers: int
    batch_invariant: bool
    notes: tuple[str, ...]


def probe(model: PreTrainedModel, arena: Arena, *, packed: bool | None = False) -> tuple[Forward, Capabilities]:
    """Decode a small tree by each route, compare it with plain passes, keep the first route that agrees.

    With ``packed``, linear layers are packed (see :mod:`rksc_tot.engine.model.onednn_linear`) for the tree, not for
    the plain passes;
    None: where that is usually faster.

    Raises
    ------
    UnsupportedModel
        If neither route reproduces the plain passes; the message says what was seen.
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
    """Find out what a model can do, and set its route and lens. All KV is dropped.

    Raises
    ------
    UnsupportedModel
        See :func:`probe`.
    """
    config, arena = forward.model.config.get_text_config(), forward.arena
    context, notes = _context(config)
    ids = _sample_ids(config.vocab_size)
    if context < len(ids):
        raise UnsupportedModel(f"a context of {context} tokens is too short to grow a tree in")
    compat.register()
    reference = _reference(forward, ids)
    largest = max(10.0, *(float(logits.abs().max()) for logits in reference))
    deep = (
        max(1.0, forward.depth / 16) ** 0.5
    )  # the rounding of half precision, of which three digits can be asked, adds up
    tolerance = largest * (1e-5 if forward.dtype.itemsize >= 4 else 0.02 * deep)
    for route in ("fast", "mask"):
        try:
            forward.take(route)
            difference = max(float((a - b).abs().max()) for a, b in zip(_tree(forward, ids), reference, strict=True))
        except Exception as error:  # anything a foreign model does here means: not by this route
            notes.append(f"{route} route: {type(error).__name__}: {str(error)[:200]}")
            continue
        finally:
            arena.clear()
        if difference <= tolerance:
            layers = _open_layers(forward, ids, reference, tolerance)
            notes += [forward.no_lens] * (not layers)
            if varies := _what_varies(forward, ids):
                notes.append(f"the last bits of a row may depend on the rest of its pass: {varies}")
            return Capabilities(route, difference, tolerance, context, layers, not varies, tuple(notes))
        notes.append(f"{route} route: logits differ by {difference:.2g} from a plain forward pass")
    raise UnsupportedModel(
        f"this model does not decode a tree as it decodes a sequence ({'; '.join(notes)})",
        hint="use a model with full or sliding-window attention and position ids",
    )


def _open_layers(forward: Forward, ids: list[int], reference: list[Tensor], tolerance: float) -> int:
    """After how many layers a pass can be looked at and left by some of its rows; 0, and the reason noted, if it cannot."""
    route = forward.route
    try:
        forward.take("mask")
        forward.lens = find_lens(forward.model, ids[:TRUNK])
        forward.take(route)
        left = _tree_left_early(forward, ids)
        difference = max(float((a - b).abs().max()) for a, b in zip(left, reference[1:], strict=True))
        if not difference <= tolerance:
            raise UnsupportedModel(f"no early exit: when some rows leave, the others differ by {difference:.2g}")
        return len(forward.lens.layers)
    except Exception as error:  # anything a foreign model does here means: its layers stay closed
        known = isinstance(error, UnsupportedModel)
        forward.no_lens = str(error) if known else f"no early exit: {type(error).__name__}: {str(error)[:200]}"
        forward.lens = None
        return 0
    finally:
        forward.take(route)
        forward.arena.clear()


def _what_varies(forward: Forward, ids: list[int]) -> str:
    """Why the last bits of a row may depend on the rest of its pass; empty if they were proved not to, on this processor."""
    if forward.device.type != "cpu" or forward.dtype != torch.float32:
        return "rows are added up in a fixed order on a CPU in float32 only"
    if forward.route != "fast":
        return "the mask route adds up over the keys of all rows"
    if not forward.all_packed:
        return "some products are not computed by oneDNN"
    try:
        varies = _differs_in_company(forward, ids)
        keys, values = forward.arena.keys, forward.arena.values
        heads = {(keys[layer].shape[-1], values[layer].shape[-1]) for layer in keys}
    finally:
        forward.arena.clear()
    if not all(proved(of_key, of_value) for of_key, of_value in heads):
        return "on this processor the products of attention have other bits in other sizes"
    return "a row that was computed alone had other bits than one that was not" if varies else ""


def _differs_in_company(forward: Forward, ids: list[int]) -> bool:
    """Whether a path that grows token by token, beside ever more rows, has other logits than copies computed whole.

    There are enough copies for torch to share out the pointwise work of the widest layer.
    """
    branch, _ = _branches(ids)[0]
    path = ids[:TRUNK] + branch
    copies = max(3, -(-2 * GRAIN // (len(path) * max(1, forward.width))))
    tree = PrefixTree(SlotPool(len(path) * (copies + 1) + sum(COMPANY)))

    def block(start: int, stop: int, root: Segment, first_wanted: int) -> Block:
        segment = tree.walk(root, path[:stop])
        slots = tree.pool.allocate(stop - start)
        tree.store(segment, slots)
        wanted = list(range(first_wanted - start, stop - start))
        return Block(segment.lineage(), start, path[start:stop], slots, wanted)

    grown: list[Tensor] = []
    own = tree.private_root()
    for n, start in enumerate((0, *range(TRUNK, len(path)))):
        stop = max(TRUNK, start + 1)
        blocks = [block(start, stop, own, stop - 1)]
        if rows := COMPANY[n % len(COMPANY)]:
            blocks.insert(0, block(0, rows, tree.private_root(), rows))
        grown += forward.run(forward.plan(blocks), tree.pool.extent)
    whole = [block(0, len(path), tree.private_root(), TRUNK - 1) for _ in range(copies)]
    found = forward.run(forward.plan(whole), tree.pool.extent)
    return not found.equal(torch.stack(grown).repeat(copies, 1))


class _FirstLeaves:
    """Sends the first ``rows`` away after the first layer."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def after(self, layer: int, look: Look) -> Collection[int]:
        return range(self.rows) if layer == 1 else ()


def _tree_left_early(forward: Forward, ids: list[int]) -> list[Tensor]:
    """The logits after all branches but the first, grown in one pass which the first leaves early."""
    tree = PrefixTree(SlotPool(len(ids)))
    trunk = tree.walk(tree.origin, ids[:TRUNK])
    blocks: list[Block] = []
    for segment in (trunk, *(tree.walk(trunk, branch) for branch, _ in _branches(ids))):
        slots = tree.pool.allocate(len(segment.tokens))
        tree.store(segment, slots)
        blocks.append(Block(segment.lineage(), segment.start, segment.tokens, slots, [len(slots) - 1]))
    forward.run(forward.plan(blocks[:1]), tree.pool.extent)
    blocks[1].logits_at = []
    watcher = _FirstLeaves(len(blocks[1].tokens))
    return list(forward.run(forward.plan(blocks[1:]), tree.pool.extent, [watcher]))


def _context(config: Any) -> tuple[int, list[str]]:
    """The longest path on which positions mean the same whatever else was computed."""
    context = getattr(config, "max_position_embeddings", None) or 1 << 20
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {str(r.get("rope_type")) for r in (rope, *rope.values()) if isinstance(r, dict)}
    changing = sorted(kinds & set(CHANGING_ROPE))
    original = getattr(config, "original_max_position_embeddings", None) or rope.get("original_max_position_embeddings")
    if not changing:
        return int(context), []
    context = int(original or context)
    return context, [
        f"{changing[0]} RoPE changes with length: paths end at {context} tokens, where it is still constant"
    ]


def _sample_ids(vocabulary: int) -> list[int]:
    count = TRUNK + sum(sum(steps) for steps in BRANCHES)
    return [1 + 1_000_003 * i % (vocabulary - 1) for i in range(count)]  # a prime: no two branches begin alike


def _branches(ids: list[int]) -> list[tuple[list[int], tuple[int, ...]]]:
    at = TRUNK
    found: list[tuple[list[int], tuple[int, ...]]] = []
    for steps in BRANCHES:
        found.append((ids[at : at + sum(steps)], steps))
        at += sum(steps)
    return found


def _reference(forward: Forward, ids: list[int]) -> list[Tensor]:
    """Logits after each branch from a plain pass over trunk and branch."""
    return [forward.plain(ids[:TRUNK] + branch)[-1] for branch, _ in _branches(ids)]


def _tree(forward: Forward, ids: list[int]) -> list[Tensor]:
    """The same logits from one trunk and all branches grown together."""
    tree = PrefixTree(SlotPool(len(ids)))
    trunk = tree.walk(tree.origin, ids[:TRUNK])
    tree.pin(trunk)
    slots = tree.pool.allocate(TRUNK)
    tree.store(trunk, slots)
    forward.run(forward.plan([Block(trunk.lineage(), 0, trunk.tokens, slots, [TRUNK - 1])]), TRUNK)
    growing = [(tree.walk(trunk, branch), list(steps)) for branch, steps in _branches(ids)]
    ends: dict[int, Tensor] = {}
    while any(steps for _, steps in growing):
        blocks, owners = [], []
        for n, (segment, steps) in enumerate(growing):
            if steps:
                count, done = steps.pop(0), len(segment.slots)
                slots = tree.pool.allocate(count)
                tree.store(segment, slots)
                tokens = segment.tokens[done : done + count]
                blocks.append(Block(segment.lineage(), segment.start + done, tokens, slots, [count - 1]))
                owners.append(n)
        logits = forward.run(forward.plan(blocks), tree.pool.extent)
        ends.update(zip(owners, logits, strict=True))
    return [ends[n] for n in range(len(growing))]
