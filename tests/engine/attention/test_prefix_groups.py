"""The keys that a pass reads in one product: each key of a path once, in order, cut at tile boundaries, shared where faster."""

import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.engine.attention.plan import FAR, LONG_PROMPT, Block, tile_end
from rksc_tot.engine.attention.planner import build
from rksc_tot.engine.attention.prefix_groups import LEAST_KEYS
from rksc_tot.policies.eviction.rsbcm import RSBCM

LENGTHS = st.one_of(st.sampled_from((1, 31, 32, 33, 127, 128, 129, 255, 256, 257, 1024)), st.integers(1, 1100))
THOUGHTS = st.lists(
    st.tuples(st.integers(0, 6), st.one_of(st.sampled_from((1, 128, 129)), st.integers(1, 300))), max_size=8
)
FOREST = st.lists(st.tuples(LENGTHS, THOUGHTS), min_size=1, max_size=4)
"""Length of a prompt; of each thought, what it comes after (0: the prompt, n: the nth thought) and its length."""


def tips(trees, seed=0):
    """The last segments of all paths, and the lengths of their prompts."""
    rng = random.Random(seed)
    tree = PrefixTree(SlotPool(1 << 16), RSBCM())
    found = []
    for n, (prompt, thoughts) in enumerate(trees):
        nodes = [tree.walk(tree.origin, [n] * prompt)]
        for m, (after, length) in enumerate(thoughts):
            nodes.append(
                tree.walk(nodes[after % len(nodes)], [100 + m, *[rng.randrange(100) for _ in range(length - 1)]])
            )
        found += [(node, prompt) for node in nodes if not node.children]
    for segment in tree.segments():
        tree.residency.store(segment, tree.residency.pool.allocate(len(segment.tokens)))
    return found


def last(tip, prompt, rows):
    """The last ``rows`` of a path that belong to no other path, as a block."""
    rows = min(rows, len(tip.tokens))
    return Block(tip.lineage(), tip.end - rows, tip.tokens[-rows:], tip.kv.slots[-rows:], [], prompt)


def numbers(index):
    return list(range(index.start, index.stop)) if isinstance(index, slice) else index.tolist()


def read(plan):
    """For each piece of a pass: its first row, its number of rows, and its keys by part, as ``(positions, slots, step)``."""
    for group in plan.groups:
        pieces, width = group.queries.shape
        rows = numbers(group.rows)
        valid = range(pieces * width) if group.valid is None else group.valid.tolist()
        for piece in range(pieces):
            keys = []
            for part in group.parts:
                index, each = numbers(part.pieces), part.rows(1)
                real = range(len(index)) if part.real is None else part.real.tolist()
                assert numbers(part.members) == [index[n] for n in real]
                slots = torch.tensor(numbers(part.slots)).view(part.sets, -1)
                for n in (n for n in real if index[n] == piece):
                    seen = part.positions[n // each] != FAR
                    keys.append((part.positions[n // each][seen].tolist(), slots[n // each][seen].tolist(), part.step))
            count = sum(piece * width <= n < (piece + 1) * width for n in valid)
            yield rows[piece * width], count, keys


def tile_boundaries(prompt, stop):
    """Starts of the products of a row at ``stop - 1``, after ``prompt`` tokens of prompt."""
    found, at = [0], 0
    while (at := tile_end(at, prompt)) < stop:
        found.append(at)
    return [at for at in found if not 0 < at < prompt or prompt < LONG_PROMPT or stop <= prompt]


@given(FOREST, st.sampled_from((1, 2, 40, 300)))
def test_every_piece_reads_each_key_of_its_path_once_in_products_that_depend_only_on_the_path(trees, rows):
    blocks = [last(tip, prompt, rows) for tip, prompt in tips(trees)]
    plan = build(blocks, torch.device("cpu"))
    of_row = [(block, n) for block in blocks for n in range(len(block.tokens))]
    reached = []
    for row, count, keys in read(plan):
        block, n = of_row[row]
        stop = block.start + n + count
        reached += range(row, row + count)
        assert [at for positions, _, _ in keys for at in positions] == list(range(stop))
        path = [slot for segment in block.lineage for slot in segment.kv.slots]
        assert [slot for _, slots, _ in keys for slot in slots] == path[:stop]
        begins = [at for positions, _, step in keys for at in positions[::step]]
        assert begins == tile_boundaries(block.prompt, stop)
    assert sorted(reached) == list(range(len(of_row)))


@given(FOREST, st.sampled_from((1, 2, 40, 300)))
def test_no_product_has_too_few_keys(trees, rows):
    plan = build([last(tip, prompt, rows) for tip, prompt in tips(trees)], torch.device("cpu"))
    for part in (part for group in plan.groups for part in group.parts):
        keys = part.positions.shape[1]
        assert min(keys, keys % part.step or keys) >= LEAST_KEYS


def parts(trees):
    """``(sets, pieces of a set, keys of a set)`` of each part, for the last token of each path."""
    [group] = build([last(tip, prompt, 1) for tip, prompt in tips(trees)], torch.device("cpu")).groups
    return [(part.sets, part.rows(1), part.positions.shape[1]) for part in group.parts]


def test_a_prompt_and_long_thoughts_are_read_once_for_all_paths_that_share_them():
    children = [(after, 4) for after in (1, 2) for _ in range(4)]
    assert parts([(300, [(0, 160), (0, 160), *children])]) == [(1, 8, 300), (1, 4, 128), (1, 4, 128), (8, 1, 32 + 4)]


def test_short_or_rarely_shared_thoughts_are_read_with_the_keys_after_them():
    children = [(after, 4) for after in (1, 2) for _ in range(4)]
    assert parts([(300, [(0, 50), (0, 50), *children])]) == [(1, 8, 300), (8, 1, 50 + 4)]
    assert parts([(300, [(0, 160), (0, 160), (1, 4), (2, 4)])]) == [(1, 2, 300), (2, 1, 160 + 4)]


def test_short_prompts_with_similar_numbers_of_paths_are_one_part():
    few, many = (40, [(0, 3)]), [(90, [(0, 3)] * 3), (100, [(0, 3)] * 4)]
    assert parts([*many, few]) == [(1, 1, 40), (2, 4, 100), (8, 1, LEAST_KEYS)]


def test_without_shared_keys_there_is_only_the_private_part():
    assert parts([(9, [(0, 20)]), (7, [(0, 23)])]) == [(2, 1, 30)]
    assert parts([(20, [(0, 2), (0, 3)])]) == [(2, 1, 23)]
