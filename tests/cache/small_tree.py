"""A prefix tree with a budget of few rows, and an offloader that records its calls."""

from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.policies.eviction.rsbcm import RSBCM
from tests.cache.reference import compute

ROW_BYTES = 10


def make_tree(limit=12, policy=None, **options):
    return PrefixTree(SlotPool(limit, ROW_BYTES), policy or RSBCM(), **options)


def hung(tree, parent, tokens):
    """A path that a handle holds, resident."""
    segment = tree.walk(parent, tokens)
    tree.hold(segment)
    compute(tree, segment)
    return segment


def store(tree, segment, count, first=None):
    """Store the next ``count`` tokens of a segment."""
    return tree.residency.store(segment, tree.residency.pool.allocate(count), first=first)


class Offloads:
    """An offloader that only records its calls."""

    def __init__(self):
        self.seen = []

    def offload(self, segment):
        assert segment.kv.slots
        self.seen.append(segment)
