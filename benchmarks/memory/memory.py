"""Savings of KV sharing and cost of a KV budget: recorded search trees replayed through cache and eviction, without a model.

``python -m benchmarks memory [--trees FILE] [--json] [--quick]``. Without a file, trees are synthetic.

A replay is a breadth-first search. On each level, every thought is generated from its parent, whose path is computed if it is not
resident. Then all thoughts of the level are visited for scoring, in the same order. Then thoughts that the recorded search did
not expand are released, and the others are expanded. Budgets are shares of the peak without eviction, but at least the longest
path. The same replay runs under every policy.

The files have no scores. Scores between 0 and 1 are drawn so that an expanded thought scores above one that was not expanded with
a given probability (the AUC). ``recomputed_by_auc`` shows the effect on RSBCM, the only policy that uses scores. ``if_kept``: the
same replay without releasing thoughts before the end, as in a search that may return to any thought.

Expected results. While a level is scored, the least recently used thought is the next to be scored. So lru evicts thoughts that
are about to be visited, while RSBCM evicts thoughts that have been scored. If all thoughts are kept, RSBCM keeps thoughts of high
score that are never visited again, at the expense of the growing path, and lru is better.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Annotated, Any, NamedTuple

import typer

from benchmarks.common.report import Quick, Report
from benchmarks.common.tree_shapes import Shape, recorded, synthetic
from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.core.errors import CacheError
from rksc_tot.policies.eviction.registry import EVICTION

POLICIES = ("rsbcm", "lru", "lfu", "random", "none")
SHARES = (0.25, 0.5, 0.75)
AUCS = (0.5, 0.8, 1.0)
SHARE, AUC = 0.5, 0.8  # defaults


class Bill(NamedTuple):
    """Tokens computed again, peak of resident tokens, and whether the search finished."""

    recomputed: int
    peak: int
    finished: bool


def visit(tree: PrefixTree, at: Segment) -> int:
    """Make a path resident like the engine; returns the number of tokens computed again."""
    again = 0
    tree.residency.pin(at)
    try:
        for segment, first in tree.residency.missing(at):
            count = len(segment.tokens) - first
            tree.room.make_room(count)
            again += count - tree.residency.store(segment, tree.residency.pool.allocate(count))
    finally:
        tree.residency.unpin(at)
    return again


def replay(shape: Shape, scores: Sequence[float], policy: str, budget: int, kept: bool = False) -> Bill:
    """One search under a budget of slots."""
    tree = PrefixTree(SlotPool(budget), EVICTION.make(policy))
    children, depths = shape.children, shape.depths
    root = tree.walk(tree.origin, [0] * shape.tokens[0])
    tree.hold(root, prompt=True)
    segments = {0: root}
    again, level = 0, [0]
    try:
        while level:
            thoughts = [(parent, node) for parent in level for node in children[parent]]
            for parent, node in thoughts:
                segments[node] = tree.walk(segments[parent], [node] * shape.tokens[node])
                tree.hold(segments[node])
                again += visit(tree, segments[node])
            for _, node in thoughts:
                again += visit(tree, segments[node])
                queue = tree.eviction_queue
                queue.rate(segments[node], queue.policy.importance(scores[node], depths[node]))
            level = [node for _, node in thoughts if children[node]]
            for _, node in thoughts:
                if not (kept or children[node]):
                    tree.drop(segments[node])
    except CacheError:
        return Bill(again, tree.residency.pool.peak, False)
    tree.check_integrity()
    return Bill(again, tree.residency.pool.peak, True)


def drawn_scores(shape: Shape, auc: float, rng: random.Random) -> list[float]:
    """Scores in 0..1: two normal distributions at the distance that gives the AUC, mapped by the normal distribution function."""
    normal = NormalDist()
    apart = math.sqrt(2) * normal.inv_cdf(auc) if auc < 1 else 12.0
    return [normal.cdf(rng.gauss(0, 1) + apart * (0.5 if below else -0.5)) for below in shape.children]


def measured_auc(shapes: Sequence[Shape], scores: Sequence[Sequence[float]]) -> float:
    """Share of pairs of siblings, one expanded and one not, in which the expanded one scores higher; ties count half."""
    won = pairs = 0.0
    for shape, score in zip(shapes, scores, strict=True):
        children = shape.children
        for siblings in children:
            for one in siblings:
                for other in siblings:
                    if children[one] and not children[other]:
                        pairs += 1
                        won += (score[one] > score[other]) + 0.5 * (score[one] == score[other])
    return won / pairs if pairs else math.nan


def overruns(policy: str, operations: int, seed: int = 0, limit: int = 60) -> int:
    """Slots over the budget, summed over random operations; counted segment by segment, independent of the pool."""
    rng = random.Random(f"{seed} {policy}")
    tree = PrefixTree(SlotPool(limit), EVICTION.make(policy))
    held: list[tuple[Segment, bool]] = []
    pinned: list[Segment] = []
    over = 0
    for n in range(operations):
        action = rng.choice(("hold", "drop", "visit", "visit", "pin", "unpin", "rate"))
        if action == "hold" and len(held) < 20:
            root = not held or rng.random() < 0.1
            at = tree.origin if root else rng.choice(held)[0]
            segment = tree.walk(at, [rng.randrange(4) for _ in range(rng.randint(1, 9))])
            tree.hold(segment, prompt=root)
            held.append((segment, root))
        elif action == "drop" and held:
            segment, root = held.pop(rng.randrange(len(held)))
            tree.drop(segment, prompt=root)
        elif action == "unpin" and pinned:
            tree.residency.unpin(pinned.pop(rng.randrange(len(pinned))))
        elif held:
            segment = rng.choice(held)[0]
            if action == "rate":
                queue = tree.eviction_queue
                queue.rate(segment, queue.policy.importance(rng.gauss(0, 1), rng.randrange(5)))
            else:
                try:
                    visit(tree, segment)
                except CacheError:
                    continue
                if action == "pin" and len(pinned) < 3:
                    tree.residency.pin(segment)
                    pinned.append(segment)
        over += max(0, sum(len(segment.kv.slots) for segment in tree.segments()) - limit)
        if n % 1000 == 0:
            tree.check_integrity()
    return over


class Replays:
    """All replays of some trees. ``over``: slots by which replays exceeded their budgets."""

    def __init__(self, tasks: dict[str, list[Shape]]) -> None:
        self.shapes = [(task, shape) for task, shapes in tasks.items() for shape in shapes]
        self.scores = {
            auc: [drawn_scores(shape, auc, random.Random(f"{auc} {n}")) for n, (_, shape) in enumerate(self.shapes)]
            for auc in AUCS
        }
        self.over = 0

    def copies_over_peak(self) -> dict[str, float]:
        """Slots of per-branch copies over the peak of the cache without eviction, as mean over the trees of a task."""
        ratios: dict[str, list[float]] = {}
        for (task, shape), scores in zip(self.shapes, self.scores[AUC], strict=True):
            bill = replay(shape, scores, "none", sum(shape.tokens))
            ratios.setdefault(task, []).append(shape.copies / bill.peak)
        return {task: round(fmean(found), 3) for task, found in ratios.items()}

    def recomputed(
        self, policy: str, share: float = SHARE, auc: float = AUC, kept: bool = False
    ) -> tuple[Counter[str], int]:
        """Tokens computed again, by task, and the number of unfinished searches."""
        again: Counter[str] = Counter()
        unfinished = 0
        for (task, shape), scores in zip(self.shapes, self.scores[auc], strict=True):
            budget = max(int(share * sum(shape.tokens)), *shape.paths)
            bill = replay(shape, scores, policy, budget, kept)
            again[task] += bill.recomputed
            unfinished += not bill.finished
            self.over += max(0, bill.peak - budget)
        return again, unfinished


def measure(quick: bool, trees: Path | None) -> dict[str, Any]:
    """The figures of this benchmark."""
    if trees is None:
        tasks = synthetic(8 if quick else 40)
    else:
        tasks = {task: shapes[:: 10 if quick else 1] for task, shapes in recorded(trees).items()}
    replays = Replays(tasks)
    operations = 1000 if quick else 20_000  # for each policy
    over = sum(overruns(policy, operations) for policy in POLICIES)
    found = {
        (policy, share, kept): replays.recomputed(policy, share, kept=kept)
        for policy in POLICIES for share in SHARES for kept in (False, True) if share == SHARE or not kept
    }  # fmt: skip
    half = {policy: found[policy, SHARE, False][0] for policy in POLICIES}
    by_auc = {
        name: {str(auc): replays.recomputed("rsbcm", auc=auc, kept=kept)[0].total() for auc in AUCS}
        for name, kept in (("given_back", False), ("if_kept", True))
    }
    shapes = [shape for _, shape in replays.shapes]
    return {
        "trees": {task: len(shapes) for task, shapes in tasks.items()},
        "tokens": sum(sum(shape.tokens) for shape in shapes),
        "copies_over_peak": replays.copies_over_peak(),
        "operations": operations * len(POLICIES),
        "overruns": over + replays.over,
        "recomputed": {policy: half[policy].total() for policy in POLICIES},
        "recomputed_by_task": {task: {policy: half[policy][task] for policy in POLICIES} for task in tasks},
        "recomputed_by_budget": {
            policy: {f"{share:.0%}": found[policy, share, False][0].total() for share in SHARES} for policy in POLICIES
        },
        "unfinished_by_budget": {
            policy: {f"{share:.0%}": failed for share in SHARES if (failed := found[policy, share, False][1])}
            for policy in POLICIES
        },
        "recomputed_if_kept": {policy: found[policy, SHARE, True][0].total() for policy in POLICIES},
        "unfinished_if_kept": {policy: failed for policy in POLICIES if (failed := found[policy, SHARE, True][1])},
        "recomputed_by_auc": by_auc,
        "auc": {str(auc): round(measured_auc(shapes, replays.scores[auc]), 3) for auc in AUCS},
    }


def main(
    quick: Quick = False,
    trees: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="recorded search trees")] = None,
) -> Report:
    """Replay the trees under every policy."""
    return Report(measure(quick, trees))
