"""The prefix tree: every token of every path once, with the slot of its KV while that is resident.

::

    (origin) ── "4 5 6 10\\n" ──┬── "10 - 4 = 6 …\\n" ──┬── …        a segment: tokens, slots of the first `stored` of them
                               │        ▲ handle      └── …
                               └── "5 * 6 = 30 …\\n"

Two children of a segment never begin with the same token, so equal paths are one path: a token that several branches
write is stored, and computed, once. A handle always stands at the end of a segment; splitting keeps the lower part's
identity, so handles and pins stay where they are.

Eviction is leaf first: a segment may lose its slots when nothing below it is resident and nothing pins it. What no handle
needs goes first, oldest first; then what handles still refer to, which is computed again when it is visited.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rksc_tot.cache.pool import SlotPool
from rksc_tot.errors import CacheError


class Segment:
    """A run of tokens without a fork. Only :class:`PrefixTree` changes it."""

    __slots__ = (
        "children",
        "handles",
        "logits",
        "parent",
        "pins",
        "slots",
        "start",
        "stored_once",
        "tokens",
        "used_at",
    )

    def __init__(self, parent: Segment | None, tokens: list[int], start: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.start = start  # position of the first token
        self.slots: list[int] = []  # of tokens[: len(slots)]; the rest is not resident
        self.stored_once = 0  # how many tokens have ever been resident
        self.children: dict[int, Segment] = {}
        self.handles = 0
        self.pins = 0  # running work at or below
        self.used_at = 0
        self.logits: Any = None  # next-token logits at the end, while somebody may want them

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + len(self.tokens)

    @property
    def resident(self) -> bool:
        """Whether all its tokens are."""
        return len(self.slots) == len(self.tokens)

    def lineage(self) -> list[Segment]:
        """Segments from the first to this one."""
        found: list[Segment] = []
        at: Segment | None = self
        while at is not None and at.parent is not None:
            found.append(at)
            at = at.parent
        return found[::-1]


class PrefixTree:
    """All segments, and the slots they hold."""

    def __init__(self, pool: SlotPool) -> None:
        self.pool = pool
        self.origin = Segment(None, [], 0)
        self.evicted_tokens = 0
        self._clock = 0
        self._idle: dict[Segment, None] = {}  # resident leaves without handle or pin, oldest first

    # -- paths -------------------------------------------------------------------------------------------------------

    def walk(self, at: Segment, tokens: Sequence[int]) -> Segment:
        """The segment that ends exactly where ``tokens`` after ``at`` end; made, split or both where needed."""
        i = 0
        while i < len(tokens):
            child = at.children.get(tokens[i])
            if child is None:
                return self._hang(at, list(tokens[i:]))
            same = 1
            while same < len(child.tokens) and i + same < len(tokens) and child.tokens[same] == tokens[i + same]:
                same += 1
            at = child if same == len(child.tokens) else self._split(child, same)
            i += same
        return at

    def step(self, at: Segment, token: int, alone: bool) -> Segment:
        """The segment that ends after ``token`` sampled at the end of ``at``.

        ``alone``: the caller is the only one that stands on ``at``, so it may simply grow.
        """
        if alone and not at.children and not at.handles and at.parent is not None:
            at.tokens.append(token)
            at.logits = None
            return at
        return self.walk(at, (token,))

    # -- who needs what ----------------------------------------------------------------------------------------------

    def hold(self, at: Segment) -> None:
        """Count a handle at the end of ``at``."""
        at.handles += 1
        self._idle.pop(at, None)

    def drop(self, at: Segment) -> None:
        """Give a handle back."""
        at.handles -= 1
        self._settle(at)

    def pin(self, at: Segment) -> None:
        """Keep the path to ``at`` resident while work runs on it."""
        self._clock += 1
        for segment in at.lineage():
            segment.pins += 1
            segment.used_at = self._clock
            self._idle.pop(segment, None)

    def unpin(self, at: Segment) -> None:
        """Undo one :meth:`pin`."""
        for segment in reversed(at.lineage()):
            segment.pins -= 1
        self._settle(at)

    # -- residency ---------------------------------------------------------------------------------------------------

    def missing(self, at: Segment) -> list[tuple[Segment, int]]:
        """(segment, first missing token) for what must be computed before ``at`` is resident, top down."""
        return [(s, len(s.slots)) for s in at.lineage() if not s.resident]

    def store(self, segment: Segment, slots: list[int]) -> int:
        """Give the next missing tokens of ``segment`` their slots; returns how many of them are stored for the first time."""
        before = len(segment.slots)
        segment.slots.extend(slots)
        new = max(0, len(segment.slots) - max(before, segment.stored_once))
        segment.stored_once = max(segment.stored_once, len(segment.slots))
        return new

    def make_room(self, count: int) -> None:
        """Evict until ``count`` slots are free. Raises CacheError if what is left is in use."""
        while self.pool.available < count:
            victim = next(iter(self._idle), None) or self._oldest_leaf()
            if victim is None:
                raise CacheError(
                    f"{count} more tokens do not fit the KV budget of {self.pool.limit} tokens, "
                    f"{self.pool.used} of which running branches need",
                    hint="raise the KV budget or expand fewer branches at once",
                )
            self._evict(victim)

    def clear(self) -> None:
        """Evict everything that no handle and no running work needs."""
        while self._idle:
            self._evict(next(iter(self._idle)))

    def discard(self, at: Segment, floor: int) -> None:
        """Evict what nobody needs at and below ``at``, and above it down to position ``floor``: scratch leaves no trace."""
        below = [at]
        for segment in below:
            below.extend(segment.children.values())
        for segment in reversed(below):
            if segment in self._idle:
                self._evict(segment)
        parent = at.parent
        while parent is not None and parent.start >= floor and parent in self._idle:
            above = parent.parent
            self._evict(parent)
            parent = above

    def segments(self) -> Iterator[Segment]:
        """All segments, parents first."""
        stack = list(self.origin.children.values())
        while stack:
            segment = stack.pop()
            yield segment
            stack.extend(segment.children.values())

    def check_integrity(self) -> None:
        """Raise CacheError unless every slot has one owner and every path is stored top down and once."""
        taken: list[int] = []
        for segment in self.segments():
            taken += segment.slots
            parent = segment.parent
            if parent is None or parent.children.get(segment.tokens[0]) is not segment or segment.start != parent.end:
                raise CacheError("a segment hangs in the wrong place")
            if segment.slots and parent is not self.origin and not parent.resident:
                raise CacheError("a token is resident under one that is not")
            if segment.pins < sum(child.pins for child in segment.children.values()):
                raise CacheError("a path is pinned below but not above")
        self.pool.check_integrity(taken)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _hang(self, at: Segment, tokens: list[int]) -> Segment:
        child = Segment(at, tokens, at.end)
        at.children[tokens[0]] = child
        self._idle.pop(at, None)
        return child

    def _split(self, low: Segment, at: int) -> Segment:
        """Cut ``low`` before its token ``at``; the new upper part is returned, ``low`` keeps the rest and its identity."""
        parent = low.parent
        if parent is None or not 0 < at < len(low.tokens):
            raise CacheError(f"cannot split a segment of {len(low.tokens)} tokens at {at}")
        high = Segment(parent, low.tokens[:at], low.start)
        high.slots, low.slots = low.slots[:at], low.slots[at:]
        high.stored_once, low.stored_once = min(at, low.stored_once), max(0, low.stored_once - at)
        high.pins, high.used_at = low.pins, low.used_at
        low.tokens, low.start, low.parent = low.tokens[at:], low.start + at, high
        parent.children[high.tokens[0]] = high
        high.children[low.tokens[0]] = low
        if not low.slots:
            self._idle.pop(low, None)
            self._settle(low)
        return high

    def _settle(self, at: Segment) -> None:
        """Note that ``at`` may have become unneeded; forget it altogether if nothing of it is resident."""
        if not (at.handles or at.pins):
            at.logits = None
        while at.parent is not None and not (at.handles or at.pins or at.children):
            if at.slots:
                self._idle[at] = None
                return
            self._idle.pop(at, None)
            parent = at.parent
            del parent.children[at.tokens[0]]
            at = parent

    def _oldest_leaf(self) -> Segment | None:
        """The least recently used resident segment that only handles refer to, with nothing resident below."""
        leaves = (
            s for s in self.segments() if s.slots and not s.pins and not any(c.slots for c in s.children.values())
        )
        return min(leaves, key=lambda s: (s.used_at, -s.start), default=None)

    def _evict(self, segment: Segment) -> None:
        self.pool.free(segment.slots)
        self.evicted_tokens += len(segment.slots)
        segment.slots = []
        segment.logits = None
        self._idle.pop(segment, None)
        self._settle(segment)
