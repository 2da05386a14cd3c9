"""Statistics of the thoughts in the prefix tree, for tree policies.

A thought lies between the ends of two handles. Siblings with a common beginning share segments, so a thought may have several
segments, and a segment may belong to several thoughts.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from rksc_tot.cache.residency import SegmentTree
from rksc_tot.cache.segment import Segment


class ThoughtStats(NamedTuple):
    """Statistics of the thoughts that a segment belongs to.

    Attributes
    ----------
    value
        Best score of these thoughts; NaN if no score is known.
    entropy
        Entropy of the next token after the best thought, in nats; NaN if unknown.
    below
        Tokens from the end of the segment to the nearest end of a thought.
    distance
        Thoughts between the segment and the nearest end of a running job.
    """

    value: float
    entropy: float
    below: int
    distance: int


def thought_stats(tree: SegmentTree) -> dict[Segment, ThoughtStats]:
    """Statistics of all segments, in one walk of the tree."""
    segments = list(tree.segments())
    away = _distances(segments)
    found: dict[Segment, ThoughtStats] = {}
    for segment in reversed(segments):  # children first
        within = [] if segment.handles else [found[child] for child in segment.children.values()]
        if within:
            best = max(within, key=lambda one: -math.inf if math.isnan(one.value) else one.value)
            below = min(len(c.tokens) + found[c].below for c in segment.children.values())
            found[segment] = ThoughtStats(best.value, best.entropy, below, away[segment])
        else:
            value, entropy = (math.nan if number is None else number for number in (segment.score, segment.entropy))
            found[segment] = ThoughtStats(value, entropy, 0, away[segment])
    return found


def _distances(segments: list[Segment]) -> dict[Segment, int]:
    """Thoughts between each segment and the nearest end of a running job; the number of segments where no job runs."""
    ends = [s for s in segments if s.pins > sum(child.pins for child in s.children.values())]
    found = dict.fromkeys(ends, 0)
    queue = deque(ends)
    while queue:  # nearest first: a step within a thought has distance 0
        at = queue.popleft()
        for near in (*at.children.values(), at.parent):
            if near is None or near.parent is None:
                continue
            step = int((near if near is at.parent else at).handles > 0)
            if found[at] + step < found.get(near, math.inf):
                found[near] = found[at] + step
                (queue.append if step else queue.appendleft)(near)
    return {segment: found.get(segment, len(segments)) for segment in segments}
