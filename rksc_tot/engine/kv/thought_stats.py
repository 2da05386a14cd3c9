"""The prefix tree seen as thoughts.

A thought is what lies between two ends at which handles stand. Siblings that begin alike share segments, so a thought may be
several segments, and a segment may be of several thoughts.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from rksc_tot.cache.prefix_tree import PrefixTree, Segment


class ThoughtStats(NamedTuple):
    """Of a segment: ``value`` and ``entropy`` of the best thought it is of (NaN: none is known), the tokens ``below`` it up to
    the nearest end of one, and the ``distance`` in thoughts from it to the nearest tip that running work stands on.
    """

    value: float
    entropy: float
    below: int
    distance: int


def thought_stats(tree: PrefixTree) -> dict[Segment, ThoughtStats]:
    """Of all segments, in one walk of the tree."""
    segments = list(tree.segments())
    away = _distances(segments)
    found: dict[Segment, ThoughtStats] = {}
    for segment in reversed(segments):  # children first
        within = [] if segment.handles else [found[child] for child in segment.children.values()]
        if within:
            best = max(within, key=lambda one: -math.inf if math.isnan(one.value) else one.value)
            below = min(len(c.tokens) + found[c].below for c in segment.children.values())
            standing = ThoughtStats(best.value, best.entropy, below, away[segment])
        else:
            value, entropy = (math.nan if number is None else number for number in (segment.score, segment.entropy))
            standing = ThoughtStats(value, entropy, 0, away[segment])
        found[segment] = standing
    return found


def _distances(segments: list[Segment]) -> dict[Segment, int]:
    """Thoughts between each segment and the nearest tip that running work stands on; their number where there is none."""
    tips = [s for s in segments if s.pins > sum(child.pins for child in s.children.values())]
    found = dict.fromkeys(tips, 0)
    ring = deque(tips)
    while ring:  # nearest first: a step within a thought costs nothing
        at = ring.popleft()
        for near in (*at.children.values(), at.parent):
            if near is None or near.parent is None:
                continue
            step = int((near if near is at.parent else at).handles > 0)
            if found[at] + step < found.get(near, math.inf):
                found[near] = found[at] + step
                (ring.append if step else ring.appendleft)(near)
    return {segment: found.get(segment, len(segments)) for segment in segments}
