"""A run of tokens in the prefix tree."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from rksc_tot.core.errors import CacheError

Key = tuple[int, tuple[float, ...], int]
"""Round, the policy's order, id: the smallest is evicted first."""


class Stored(NamedTuple):
    """What was stored of a segment."""

    slots: list[int]
    kept: list[int] | None
    reach: int
    sound: int
    stored_once: int


class OffloadedKV(Protocol):
    """KV of the first tokens of a segment in an offload store (see :mod:`rksc_tot.cache.offload.store`)."""

    tokens: int
    gone: bool

    def split(self, at: int) -> tuple[OffloadedKV, OffloadedKV]:
        """Two in place of this one."""
        ...

    def drop(self) -> None:
        """It is not wanted any more."""
        ...


class Payer(Protocol):
    """Whoever counts the tokens that are resident on his account."""

    kv_rows: int


class Segment:
    """A run of tokens without a fork. Only :class:`~rksc_tot.cache.prefix_tree.PrefixTree` changes it."""

    __slots__ = (
        "children",
        "entropy",
        "handles",
        "id",
        "importance",
        "irreplaceable",
        "kept",
        "logits",
        "mixed",
        "parent",
        "payer",
        "pins",
        "prompts",
        "queued",
        "reach",
        "score",
        "slots",
        "sound",
        "start",
        "states",
        "stored_children",
        "stored_once",
        "stowed",
        "tokens",
        "used_at",
        "uses",
    )

    def __init__(self, parent: Segment | None, tokens: list[int], start: int, id: int) -> None:
        self.id = id
        self.parent = parent
        self.tokens = tokens
        self.start = start  # position of the first token
        self.reach = 0  # so many first tokens are stored, or were and have been let go; the rest is not resident
        self.slots: list[int] = []  # of tokens[:reach], or of those that are kept
        self.kept: list[int] | None = None  # of a reduced segment: which tokens these are, ascending; None: all
        self.mixed = False  # of a reduced segment: every head has kept tokens of its own; kept names as many
        self.sound = 0  # so many first tokens have the KV that the full path gives
        self.payer: Payer | None = None  # on whose account the slots are, where somebody counts
        self.stored_once = 0  # how many tokens have ever been resident
        self.stowed: OffloadedKV | None = None  # a copy of the KV of its first tokens, outside the arena
        self.children: dict[int, Segment] = {}
        self.stored_children: dict[Segment, None] = {}  # those with something stored, and maybe some that lost it
        self.handles = 0
        self.prompts = 0  # of open searches, at or below
        self.pins = 0  # running work at or below
        self.used_at = 0
        self.uses = 0  # visits
        self.importance: float | None = None  # as it was rated
        self.score: float | None = None  # by which it was
        self.entropy: float | None = None  # of the token after it, nats, where a compression policy asks
        self.irreplaceable = False  # what is computed anew would not be the same
        self.queued: Key | None = None  # where it stands among the victims
        self.logits: Any = None  # next-token logits at the end, while somebody may want them
        self.states: Any = None  # hidden states [L, H] of the last row computed on the way here, likewise

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + len(self.tokens)

    @property
    def resident(self) -> bool:
        """Whether nothing must be computed to read on below it: all its tokens are stored, or were and have been let go."""
        return self.reach == len(self.tokens)

    @property
    def exact(self) -> bool:
        """Whether all that is stored of it is what the full path gives, though it may be reduced now."""
        return self.sound == self.reach

    @property
    def borrows(self) -> bool:
        """Whether its path stands on KV that was taken over from another."""
        return any(segment.irreplaceable for segment in self.lineage())

    @property
    def whole(self) -> bool:
        """Whether all its tokens are stored, each as the full path gives it."""
        return self.resident and self.exact and self.kept is None

    @property
    def stood_on(self) -> bool:
        """Whether a handle or running work stands at its very end."""
        return self.handles > 0 or self.pins > sum(child.pins for child in self.children.values())

    def first_flaw(self) -> int:
        """The first token whose KV is not there, or not what the full path gives; their number if there is none."""
        if self.kept is None or self.mixed:
            return 0 if self.mixed else self.sound
        there = next((n for n, token in enumerate(self.kept) if token != n), len(self.kept))
        return min(there, self.sound)

    def read(self, first: int, stop: int) -> tuple[list[int], list[int]]:
        """Slots and positions of what is kept of the tokens from position ``first`` to ``stop``."""
        low, high = max(0, first - self.start), max(0, stop - self.start)
        if self.kept is None:
            slots = self.slots[low:high]
            return slots, list(range(self.start + low, self.start + low + len(slots)))
        low, high = bisect_left(self.kept, low), bisect_left(self.kept, high)
        return self.slots[low:high], [self.start + token for token in self.kept[low:high]]

    def slots_of(self, tokens: range) -> dict[int, int]:
        """The slots of those of its tokens that are kept."""
        if tokens.start >= self.reach:
            return {}
        names = range(self.reach) if self.kept is None else self.kept
        return {name: slot for name, slot in zip(names, self.slots, strict=True) if name in tokens}

    def stored(self) -> Stored:
        """What is stored of it now."""
        return Stored(self.slots[:], self.kept and self.kept[:], self.reach, self.sound, self.stored_once)

    def put(self, first: int, slots: list[int]) -> None:
        """Store tokens from ``first`` on in these slots; those that are kept have them already."""
        end, appended = first + len(slots), first == self.reach
        self.reach = max(self.reach, end)
        if not appended:
            there = dict(enumerate(self.slots) if self.kept is None else zip(self.kept, self.slots, strict=True))
            there |= zip(range(first, end), slots, strict=True)
            self.kept, self.slots = sorted(there), [there[token] for token in sorted(there)]
            self._unmark()
            return
        self.slots += slots
        if self.kept is not None:
            self.kept += range(first, end)

    def hand_over(self, high: Segment, at: int) -> None:
        """Give a new segment above what is stored of the tokens before ``at``, which are about to be its own."""
        cut = at if self.kept is None else bisect_left(self.kept, at)
        high.slots, self.slots = self.slots[:cut], self.slots[cut:]
        if self.kept is not None:
            high.kept, self.kept = self.kept[:cut], [token - at for token in self.kept[cut:]]
        high.mixed, self.mixed = (self.mixed and bool(part.slots) for part in (high, self))
        high.reach, self.reach = min(at, self.reach), max(0, self.reach - at)
        high.sound, self.sound = min(at, self.sound), max(0, self.sound - at)
        high._unmark()
        self._unmark()
        if self.stowed is not None and self.stowed.tokens > at:
            high.stowed, self.stowed = self.stowed.split(at)
        else:
            high.stowed, self.stowed = self.stowed, None

    def is_one_with(self, low: Segment) -> bool:
        """Whether nothing but tokens tells it from its child ``low``."""
        plain = self.resident and not (self.handles or self.mixed or low.mixed) and self.importance is None
        owners = (self.payer, self.irreplaceable, self.pins, self.prompts) == (
            low.payer,
            low.irreplaceable,
            low.pins,
            low.prompts,
        )
        return plain and owners and len(self.children) == 1 and (self.exact or not low.sound)

    def hand_down(self, low: Segment) -> None:
        """Give all tokens, and what is stored of them, to the only child ``low``."""
        kept = None
        if self.kept is not None or low.kept is not None:
            high, rest = (range(s.reach) if s.kept is None else s.kept for s in (self, low))
            kept = [*high, *(len(self.tokens) + token for token in rest)]
        low.slots, low.kept = self.slots + low.slots, kept
        low.sound = self.reach + low.sound if self.exact else self.sound
        low.reach, low.stored_once = self.reach + low.reach, self.stored_once + low.stored_once
        low.tokens, low.start, low.parent = self.tokens + low.tokens, self.start, self.parent
        low.uses = max(self.uses, low.uses)
        self.forget()
        for segment in (self, low):
            segment.unstow()

    def forget(self) -> None:
        """Nothing of it is stored."""
        self.slots, self.kept, self.mixed = [], None, False
        self.reach = self.sound = 0

    def unstow(self) -> None:
        """Give up the copy outside the arena."""
        if self.stowed is not None:
            self.stowed.drop()
            self.stowed = None

    def check_integrity(self) -> None:
        """Raise CacheError unless what is said of its slots fits together."""
        kept = list(range(self.reach)) if self.kept is None else self.kept
        ascending = all(a < b for a, b in pairwise(kept))
        if len(self.slots) != len(kept) or not ascending or not 0 <= self.sound <= self.reach <= len(self.tokens):
            raise CacheError("a segment does not know which of its tokens are stored")
        if kept and kept[-1] >= self.reach:
            raise CacheError("a segment keeps a token that was never stored")

    def _unmark(self) -> None:
        """It is not reduced if all its tokens are kept."""
        if self.kept is not None and not self.mixed and len(self.kept) == self.reach:
            self.kept = None

    def is_leaf(self) -> bool:
        """Whether nothing below is resident."""
        while self.stored_children:
            child = next(iter(self.stored_children))
            if child.reach:
                return False
            del self.stored_children[child]
        return True

    def lineage(self) -> list[Segment]:
        """Segments from the first to this one."""
        found: list[Segment] = []
        at: Segment | None = self
        while at is not None and at.parent is not None:
            found.append(at)
            at = at.parent
        return found[::-1]
