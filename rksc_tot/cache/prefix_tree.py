"""The prefix tree: every token of every path once, with the slot of its KV while that is resident.

::

    (origin) ── "4 5 6 10\\n" ──┬── "10 - 4 = 6 …\\n" ──┬── …        a segment: tokens, slots of the first `stored` of them
                               │        ▲ handle      └── …
                               └── "5 * 6 = 30 …\\n"

Two children of a segment never begin with the same token, so equal paths are one path: a token that several branches
write is stored, and computed, once. A handle always stands at the end of a segment; splitting keeps the lower part's
identity, so handles and pins stay where they are.

Eviction is leaf first: a segment may lose its slots when nothing below it is resident and nothing pins it. What no handle
refers to goes first; then what handles still refer to, which is computed again when it is visited; and the prompt of a
search that is still open only where a request would fail otherwise. Which one within a round, the eviction policy says.

A path may also hang from an origin of its own (:meth:`PrefixTree.sprout`), where equal tokens from elsewhere never meet it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rksc_tot.cache.pool import SlotPool
from rksc_tot.cache.segment import Payer, Segment
from rksc_tot.cache.victims import UNREFERRED, Victims
from rksc_tot.errors import AccountFull, CacheError
from rksc_tot.policies.eviction import EvictionPolicy
from rksc_tot.policies.rsbcm import RSBCM

__all__ = ["PrefixTree", "Segment"]


class PrefixTree:
    """All segments, and the slots they hold."""

    def __init__(self, pool: SlotPool, policy: EvictionPolicy | None = None) -> None:
        self.pool = pool
        self.evicted_tokens = 0
        """Tokens that went to make room, so far."""
        self._clock = 0
        self._made = 0
        self._victims = Victims(policy or RSBCM())
        self.origin = self._segment(None, [], 0)
        self._origins: dict[Segment, None] = {}  # those that something hangs from

    @property
    def policy(self) -> EvictionPolicy:
        """What is evicted first."""
        return self._victims.policy

    # -- paths -------------------------------------------------------------------------------------------------------

    def sprout(self, keep: bool = False) -> Segment:
        """A private origin: what is walked from it, and below, is met from nowhere else, whatever its tokens.

        ``keep``: the KV of the path walked from it is not what its tokens alone would give, so it is not evicted while a handle
        refers to it, or to anything below. What hangs below that path is evicted, and computed again upon it, like any other.
        An origin is forgotten with the last path on it.
        """
        origin = self._segment(None, [], 0)
        origin.keep = keep
        return origin

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
            at.logits = at.states = None
            return at
        return self.walk(at, (token,))

    # -- who needs what ----------------------------------------------------------------------------------------------

    def hold(self, at: Segment, prompt: bool = False) -> None:
        """Count a handle at the end of ``at``. ``prompt``: a search is open on it."""
        at.handles += 1
        if prompt:
            for segment in at.lineage():
                segment.prompts += 1

    def drop(self, at: Segment, prompt: bool = False) -> None:
        """Give a handle back, held as it was."""
        at.handles -= 1
        if prompt:
            for segment in at.lineage():
                segment.prompts -= 1
        self._settle(at)

    def pin(self, at: Segment) -> None:
        """Keep the path to ``at`` resident while work runs on it."""
        self._clock += 1
        for segment in at.lineage():
            segment.uses += not segment.pins
            segment.pins += 1
            segment.used_at = self._clock

    def unpin(self, at: Segment) -> None:
        """Undo one :meth:`pin`."""
        for segment in at.lineage():
            segment.pins -= 1
        self._settle(at)

    def rate(self, at: Segment, importance: float) -> None:
        """Say how important ``at`` is, and what is unrated below it; costs a look at each of those.

        It stays so until it is rated anew, or forgotten, also for a later search that walks the same path.

        Raises
        ------
        CacheError
            If it is not a number.
        """
        if math.isnan(importance):
            raise CacheError("an importance is not a number", hint="give the path a finite score")
        at.importance = importance
        heirs = [at]
        for segment in heirs:
            self._victims.offer(segment)
            heirs.extend(child for child in segment.children.values() if child.importance is None)

    # -- residency ---------------------------------------------------------------------------------------------------

    def missing(self, at: Segment) -> list[tuple[Segment, int]]:
        """(segment, first missing token) for what must be computed before ``at`` is resident, top down.

        What is stored is stored top down, so it takes a look at those and one more.
        """
        found: list[tuple[Segment, int]] = []
        segment: Segment | None = at
        while segment is not None and segment.parent is not None and not segment.resident:
            found.append((segment, len(segment.slots)))
            segment = segment.parent
        return found[::-1]

    def store(self, segment: Segment, slots: list[int], payer: Payer | None = None) -> int:
        """Give the next missing tokens of ``segment`` their slots; returns how many of them are stored for the first time.

        ``payer``: on whose account; nobody else may have paid for the first ones (see :meth:`part`).
        """
        before = len(segment.slots)
        segment.payer = payer
        if payer is not None:
            payer.kv_rows += len(slots)
        segment.slots.extend(slots)
        new = max(0, len(segment.slots) - max(before, segment.stored_once))
        segment.stored_once = max(segment.stored_once, len(segment.slots))
        if segment.slots and segment.parent is not None:
            segment.parent.stored_children[segment] = None
        self._victims.offer(segment)
        return new

    def take_back(self, segment: Segment, count: int, stored_once: int) -> None:
        """Undo the storing of the last ``count`` tokens; ``stored_once``: how many had ever been resident before."""
        kept = len(segment.slots) - count
        self._let_go(segment, segment.slots[kept:])
        del segment.slots[kept:]
        segment.stored_once = stored_once

    def part(self, segment: Segment, payer: Payer | None) -> None:
        """Split a segment whose first tokens are resident on another account from the rest, which is about to be stored."""
        if segment.slots and not segment.resident and segment.payer is not payer:
            self._split(segment, len(segment.slots))

    def make_room_within(self, count: int, limit: int, payer: Payer) -> None:
        """Evict of what ``payer`` holds until he may store ``count`` more within ``limit`` tokens.

        Costs a look at every segment whenever something has to go.

        Raises
        ------
        AccountFull
            If what is left is in use.
        """
        while payer.kv_rows + count > limit:
            keys = [(k, s) for s in self.segments() if s.payer is payer and (k := self._victims.key(s)) is not None]
            if not keys:
                raise AccountFull(
                    f"{count} more tokens do not fit the {limit} this search may hold, {payer.kv_rows} of which are in use",
                    hint="raise its budget of KV bytes or expand fewer branches at once",
                )
            for _, victim in sorted(keys):
                if payer.kv_rows + count <= limit:
                    break
                self.evicted_tokens += len(victim.slots)
                self._evict(victim)

    def make_room(self, count: int) -> None:
        """Evict until ``count`` slots are free. Raises CacheError if what is left is in use."""
        while self.pool.available < count:
            victim = self._victims.take()
            if victim is None:
                needed = "running branches need" if self.policy.evicts_held else "running branches or open handles need"
                raise CacheError(
                    f"{count} more tokens do not fit the KV budget of {self.pool.limit} tokens, "
                    f"{self.pool.used} of which {needed}",
                    hint="raise the KV budget or expand fewer branches at once",
                )
            self.evicted_tokens += len(victim.slots)
            self._evict(victim)

    def clear(self) -> None:
        """Evict everything that no handle and no running work needs."""
        while victim := self._victims.take(last=UNREFERRED):
            self._evict(victim)

    def discard(self, at: Segment, floor: int) -> None:
        """Evict what nobody needs at and below ``at``, and above it down to position ``floor``: scratch leaves no trace."""
        below = [at]
        for segment in below:
            below.extend(segment.children.values())
        for segment in reversed(below):
            if segment.slots and _unneeded(segment):
                self._evict(segment)
        parent = at.parent
        while parent is not None and parent.start >= floor and parent.slots and _unneeded(parent):
            above = parent.parent
            self._evict(parent)
            parent = above

    def segments(self) -> Iterator[Segment]:
        """All segments, parents first."""
        stack = [child for origin in self._origins for child in origin.children.values()]
        while stack:
            segment = stack.pop()
            yield segment
            stack.extend(segment.children.values())

    def check_integrity(self) -> None:
        """Raise CacheError unless every slot has one owner, every payer is charged for what he holds, and every path is stored
        top down and once.
        """
        taken: list[int] = []
        paid: dict[int, tuple[Payer, int]] = {}  # tokens found on the account of each, by id
        for segment in self.segments():
            taken += segment.slots
            if (payer := segment.payer) is not None:
                paid[id(payer)] = (payer, len(segment.slots) + paid.get(id(payer), (payer, 0))[1])
            parent = segment.parent
            stored = [child for child in segment.children.values() if child.slots]
            if parent is None or parent.children.get(segment.tokens[0]) is not segment or segment.start != parent.end:
                raise CacheError("a segment hangs in the wrong place")
            if stored and not segment.resident:
                raise CacheError("a token is resident under one that is not")
            if not segment.stored_children.keys() >= set(stored):
                raise CacheError("a segment does not know what is resident below it")
            if segment.pins < sum(child.pins for child in segment.children.values()):
                raise CacheError("a path is pinned below but not above")
            here = segment.prompts - sum(child.prompts for child in segment.children.values())
            if not 0 <= here <= segment.handles:
                raise CacheError("a prompt is open below but not above, or without a handle")
        if any(payer.kv_rows != held for payer, held in paid.values()):
            raise CacheError("an account is charged for more or less than is resident on it")
        self.pool.check_integrity(taken)
        self._victims.check_integrity(self.segments())

    # -- inside ------------------------------------------------------------------------------------------------------

    def _segment(self, parent: Segment | None, tokens: list[int], start: int) -> Segment:
        self._made += 1
        return Segment(parent, tokens, start, self._made)

    def _hang(self, at: Segment, tokens: list[int]) -> Segment:
        child = self._segment(at, tokens, at.end)
        at.children[tokens[0]] = child
        if at.parent is None:
            self._origins[at] = None
            child.keep = at.keep
        return child

    def _split(self, low: Segment, at: int) -> Segment:
        """Cut ``low`` before its token ``at``; the new upper part is returned, ``low`` keeps the rest and its identity."""
        parent = low.parent
        if parent is None or not 0 < at < len(low.tokens):
            raise CacheError(f"cannot split a segment of {len(low.tokens)} tokens at {at}")
        high = self._segment(parent, low.tokens[:at], low.start)
        high.slots, low.slots = low.slots[:at], low.slots[at:]
        high.stored_once, low.stored_once = min(at, low.stored_once), max(0, low.stored_once - at)
        high.pins, high.prompts, high.keep, high.payer = low.pins, low.prompts, low.keep, low.payer
        high.used_at, high.uses = low.used_at, low.uses
        low.tokens, low.start, low.parent = low.tokens[at:], low.start + at, high
        parent.children[high.tokens[0]] = high
        high.children[low.tokens[0]] = low
        for above, below in ((parent, high), (high, low)):
            if below.slots:
                above.stored_children[below] = None
        parent.stored_children.pop(low, None)
        if not low.slots:
            self._settle(low)
        return high

    def _settle(self, at: Segment) -> None:
        """Note that ``at`` may have become unneeded; forget it altogether if nothing of it is resident."""
        if not (at.handles or at.pins):
            at.logits = at.states = None
        while (parent := at.parent) is not None and not at.slots and _unneeded(at):
            del parent.children[at.tokens[0]]
            parent.stored_children.pop(at, None)
            at = parent
        if at.parent is None and not at.children:
            self._origins.pop(at, None)
        while not at.slots and at.parent is not None:
            at = at.parent
        self._victims.offer(at)  # the lowest resident one of the path: none above it is a leaf

    def _let_go(self, segment: Segment, slots: list[int]) -> None:
        self.pool.free(slots)
        if segment.payer is not None:
            segment.payer.kv_rows -= len(slots)

    def _evict(self, segment: Segment) -> None:
        self._let_go(segment, segment.slots)
        segment.slots = []
        segment.logits = segment.states = None
        if segment.parent is not None:
            segment.parent.stored_children.pop(segment, None)
        self._settle(segment)


def _unneeded(segment: Segment) -> bool:
    """Whether nobody refers to a segment, or to anything below."""
    return segment.parent is not None and not (segment.handles or segment.pins or segment.children)
