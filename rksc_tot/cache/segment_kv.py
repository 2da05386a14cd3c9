"""The KV of one segment: which of its tokens have a slot of the arena, and whether their KV is exact.

::

    tokens of the segment     t0 t1 t2 t3 t4 t5 t6 t7
    computed = 6              ●  ●  ●  ●  ●  ●              KV was computed for the first 6 tokens
    present = [0, 1, 4, 5]    ●  ●        ●  ●              compression has dropped the KV of t2 and t3
    slots = [7, 8, 3, 4]      7  8        3  4              where the KV of the present tokens lies
    exact_tokens = 4          ●  ●  ●  ●                    t4 and t5 were computed from compressed KV
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from rksc_tot.cache.kv_budget.payer import Payer
from rksc_tot.core.errors import CacheError


class KVState(NamedTuple):
    """What :meth:`SegmentKV.state` saved: the fields of :class:`SegmentKV` of the same names."""

    slots: list[int]
    present: list[int] | None
    computed: int
    exact_tokens: int
    ever_computed: int


class OffloadedKV(Protocol):
    """A copy of the KV of a segment's first tokens in an offload store (see :mod:`rksc_tot.cache.offload.store`).

    Attributes
    ----------
    tokens
        How many tokens.
    gone
        Whether the store no longer holds the copy.
    """

    tokens: int
    gone: bool

    def split(self, at: int) -> tuple[OffloadedKV, OffloadedKV]:
        """Two copies in place of this one: of the first ``at`` tokens, and of the rest."""
        ...

    def drop(self) -> None:
        """Give the copy up."""
        ...


class SegmentKV:
    """The KV of one segment. Only :class:`~rksc_tot.cache.residency.Residency` changes it.

    Attributes
    ----------
    computed
        KV was computed for so many first tokens. Compression may have dropped some of it since.
    present
        Indexes of the computed tokens whose KV is present, ascending; None: all of them.
    slots
        The slots of the present tokens.
    per_head
        Whether each head keeps tokens of its own. ``present`` then says how many each head keeps, not which.
    exact_tokens
        So many first tokens have KV that was computed from the full KV of their path.
    ever_computed
        The most tokens for which KV has ever been computed, evicted KV included.
    payer
        The account that is charged for the slots; None: no account is.
    offloaded
        A copy of the KV of the first tokens outside the arena.
    """

    __slots__ = ("computed", "ever_computed", "exact_tokens", "offloaded", "payer", "per_head", "present", "slots")

    def __init__(self) -> None:
        self.computed = 0
        self.present: list[int] | None = None
        self.slots: list[int] = []
        self.per_head = False
        self.exact_tokens = 0
        self.ever_computed = 0
        self.payer: Payer | None = None
        self.offloaded: OffloadedKV | None = None

    @property
    def exact(self) -> bool:
        """Whether all computed tokens were computed from the full KV of their path, though some may have been dropped."""
        return self.exact_tokens == self.computed

    @property
    def present_tokens(self) -> Sequence[int]:
        """Indexes of the tokens whose KV is present, ascending."""
        return range(self.computed) if self.present is None else self.present

    def first_inexact(self) -> int:
        """Index of the first token whose KV is missing or not exact; ``computed`` if there is none."""
        if self.per_head:
            return 0
        if self.present is None:
            return self.exact_tokens
        first_absent = next((n for n, token in enumerate(self.present) if token != n), len(self.present))
        return min(first_absent, self.exact_tokens)

    def slots_of(self, tokens: range) -> dict[int, int]:
        """The slots of the tokens in ``tokens`` that are present, by token."""
        if tokens.start >= self.computed:
            return {}
        return {token: slot for token, slot in zip(self.present_tokens, self.slots, strict=True) if token in tokens}

    def within(self, first: int, stop: int) -> slice:
        """Which of the slots belong to the tokens ``first`` to ``stop``."""
        first, stop = max(0, first), max(0, stop)
        if self.present is None:
            return slice(first, stop)
        return slice(bisect_left(self.present, first), bisect_left(self.present, stop))

    def state(self) -> KVState:
        """A copy of all fields that storing KV changes."""
        return KVState(
            self.slots[:], self.present and self.present[:], self.computed, self.exact_tokens, self.ever_computed
        )

    def put(self, first: int, slots: Sequence[int]) -> None:
        """Store the tokens from ``first`` on in ``slots``. A token that is present already keeps its slot."""
        stop, appended = first + len(slots), first == self.computed
        if not appended:
            slot_of = dict(zip(self.present_tokens, self.slots, strict=True))
            slot_of |= zip(range(first, stop), slots, strict=True)
            self.computed = max(self.computed, stop)
            self.present, self.slots = sorted(slot_of), [slot_of[token] for token in sorted(slot_of)]
            self._simplify()
            return
        self.computed = stop
        self.slots += slots
        if self.present is not None:
            self.present += range(first, stop)

    def keep(self, kept: Sequence[int], per_head: bool) -> list[int]:
        """Drop all slots but those with the indexes ``kept``, ascending; returns the dropped slots.

        ``per_head``: whether each head keeps tokens of its own, whose KV lies in the kept slots now.
        """
        tokens, stays = self.present_tokens, set(kept)
        dropped = [slot for n, slot in enumerate(self.slots) if n not in stays]
        self.present = [tokens[n] for n in kept]
        self.slots = [self.slots[n] for n in kept]
        self.per_head = bool(kept) and (self.per_head or per_head)
        return dropped

    def truncate(self, count: int) -> list[int]:
        """Drop the last ``count`` tokens, which were stored last; returns their slots."""
        left = len(self.slots) - count
        dropped = self.slots[left:]
        del self.slots[left:]
        if self.present is not None:
            del self.present[left:]
        self.computed -= count
        self.exact_tokens = min(self.exact_tokens, self.computed)
        return dropped

    def split(self, head: SegmentKV, at: int) -> None:
        """Move what is stored of the first ``at`` tokens to ``head``, which holds nothing yet."""
        cut = self.within(0, at).stop
        head.slots, self.slots = self.slots[:cut], self.slots[cut:]
        if self.present is not None:
            head.present, self.present = self.present[:cut], [token - at for token in self.present[cut:]]
        head.per_head, self.per_head = (self.per_head and bool(kv.slots) for kv in (head, self))
        head.computed, self.computed = min(at, self.computed), max(0, self.computed - at)
        head.exact_tokens, self.exact_tokens = min(at, self.exact_tokens), max(0, self.exact_tokens - at)
        head.ever_computed, self.ever_computed = min(at, self.ever_computed), max(0, self.ever_computed - at)
        head.payer = self.payer
        head._simplify()
        self._simplify()
        if self.offloaded is not None and self.offloaded.tokens > at:
            head.offloaded, self.offloaded = self.offloaded.split(at)
        else:
            head.offloaded, self.offloaded = self.offloaded, None

    def prepend(self, head: SegmentKV) -> None:
        """Put all that ``head`` stores before what this stores. Copies outside the arena are dropped."""
        present = None
        if head.present is not None or self.present is not None:
            present = [*head.present_tokens, *(head.computed + token for token in self.present_tokens)]
        self.slots, self.present = head.slots + self.slots, present
        self.exact_tokens = head.computed + self.exact_tokens if head.exact else head.exact_tokens
        self.computed, self.ever_computed = head.computed + self.computed, head.ever_computed + self.ever_computed
        head.clear()
        for kv in (head, self):
            kv.drop_offloaded()

    def clear(self) -> None:
        """Forget all slots: nothing is stored any more."""
        self.slots, self.present, self.per_head = [], None, False
        self.computed = self.exact_tokens = 0

    def drop_offloaded(self) -> None:
        """Give up the copy outside the arena, if there is one."""
        if self.offloaded is not None:
            self.offloaded.drop()
            self.offloaded = None

    def check_integrity(self, tokens: int) -> None:
        """Raise CacheError unless the fields fit together for a segment of ``tokens`` tokens."""
        present = self.present_tokens
        ascending = all(a < b for a, b in pairwise(present))
        if len(self.slots) != len(present) or not ascending or not 0 <= self.exact_tokens <= self.computed <= tokens:
            raise CacheError("the KV of a segment does not say which of its tokens are present")
        if present and present[-1] >= self.computed:
            raise CacheError("the KV of a token is present that was never computed")

    def _simplify(self) -> None:
        """Mark nothing as dropped where all computed tokens are present."""
        if self.present is not None and not self.per_head and len(self.present) == self.computed:
            self.present = None
