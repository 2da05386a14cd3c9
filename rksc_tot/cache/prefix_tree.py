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

A path may also hang from an origin of its own (:meth:`PrefixTree.private_root`), where equal tokens from elsewhere never meet it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence

from rksc_tot.cache.eviction_queue import PROMPT, UNREFERRED, EvictionQueue
from rksc_tot.cache.segment import Payer, Segment, Stored
from rksc_tot.cache.slot_pool import SlotPool
from rksc_tot.core.errors import AccountFull, CacheError
from rksc_tot.policies.eviction.base import EvictionPolicy
from rksc_tot.policies.eviction.rsbcm import RSBCM

__all__ = ["PrefixTree", "Segment"]

_log = logging.getLogger("rksc_tot")


class PrefixTree:
    """All segments, and the slots they hold."""

    def __init__(self, pool: SlotPool, policy: EvictionPolicy | None = None, isolated: bool = False) -> None:
        self.pool = pool
        self.evicted_tokens = 0
        """Tokens that went to make room, so far."""
        self.flawed = False
        """Whether anything was ever reduced."""
        self.isolated = isolated
        """Whether every prompt hangs from an origin of its own, so that no search finds what another has left. What is left of
        one is forgotten once its prompt is closed and nobody needs it."""
        self.relief: Callable[[int], None] | None = None
        """Reduces what handles refer to until so many slots are free, or as far as that goes, before any of it is evicted."""
        self.shelve: Callable[[Segment], None] | None = None
        """Keeps a copy of a segment's KV, some of which is about to go although somebody refers to it."""
        self.changes = 0
        """How often KV was dropped or copied back, or a segment split: then what :meth:`missing` gave may not hold any more."""
        self._clock = 0
        self._made = 0
        self._victims = EvictionQueue(policy or RSBCM())
        self.origin = self._segment(None, [], 0)
        self._origins: dict[Segment, None] = {}  # those that something hangs from

    @property
    def policy(self) -> EvictionPolicy:
        """What is evicted first."""
        return self._victims.policy

    # -- paths -------------------------------------------------------------------------------------------------------

    def private_root(self, irreplaceable: bool = False) -> Segment:
        """A private origin: what is walked from it, and below, is met from nowhere else, whatever its tokens.

        ``irreplaceable``: the KV of the path walked from it is not what its tokens alone would give, so it is not
        evicted while a handle
        refers to it, or to anything below. What hangs below that path is evicted, and computed again on it, like any other.
        An origin is forgotten with the last path on it.
        """
        origin = self._segment(None, [], 0)
        origin.irreplaceable = irreplaceable
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
            if same < len(child.tokens) and child.mixed:
                self.rewind(child)  # whose rows are whose cannot be told
                continue
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

    def join(self, at: Segment) -> None:
        """Make one segment of ``at`` and those above it that differ from it in nothing but their tokens."""
        while (high := at.parent) is not None and high.parent is not None and high.is_one_with(at):
            high.hand_down(at)
            high.parent.children[high.tokens[0]] = at
            high.parent.stored_children.pop(high, None)
            if at.reach:
                high.parent.stored_children[at] = None
            self._victims.offer(at)

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
        lineage = at.lineage()
        if prompt:
            for segment in lineage:
                segment.prompts -= 1
        self._settle(at)
        if prompt and self._over(at):
            self.discard(lineage[0], 0)

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

    def rate(self, at: Segment, importance: float, score: float | None = None) -> None:
        """Say how important ``at`` is, and what is unrated below it; costs a look at each of those. ``score``: why.

        It stays so until it is rated anew, or forgotten, also for a later search that walks the same path.

        Raises
        ------
        CacheError
            If it is not a number.
        """
        if math.isnan(importance):
            raise CacheError("an importance is not a number", hint="give the path a finite score")
        at.importance, at.score = importance, score
        heirs = [at]
        for segment in heirs:
            self._victims.offer(segment)
            heirs.extend(child for child in segment.children.values() if child.importance is None)

    # -- residency ---------------------------------------------------------------------------------------------------

    def missing(self, at: Segment, exact: bool = False) -> list[tuple[Segment, int]]:
        """(segment, first missing token) for what must be computed before ``at`` is resident, top down.

        What is stored is stored top down, so it takes a look at those and one more. ``exact``: also what was let go, or was
        computed where something had been; the first of it comes first, and what it stands on is whole.
        """
        if exact and self.flawed:
            return [(segment, segment.first_flaw()) for segment in at.lineage() if not segment.whole]
        found: list[tuple[Segment, int]] = []
        segment: Segment | None = at
        while segment is not None and segment.parent is not None and not segment.resident:
            found.append((segment, segment.reach))
            segment = segment.parent
        if not found and at.kept is not None and at.kept[-1:] != [len(at.tokens) - 1]:
            found.append((at, len(at.tokens) - 1))  # logits come from the last token
        return found[::-1]

    def store(self, segment: Segment, slots: list[int], payer: Payer | None = None, first: int | None = None) -> int:
        """Give the next missing tokens of ``segment`` their slots; returns how many of them are stored for the first time.

        ``payer``: on whose account; nobody else may have paid for the first ones (see :meth:`part`). ``first``: where they
        begin instead, as :meth:`missing` gave it for a segment that is reduced or not exact; what is kept of them is stored
        again in the slots it has.
        """
        first = segment.reach if first is None else first
        end = first + len(slots)
        sound = first <= segment.first_flaw() and (not self.flawed or all(s.whole for s in segment.lineage()[:-1]))
        before = len(segment.slots)
        payer = segment.payer if first < segment.reach else payer
        segment.put(first, slots)
        if segment.resident:  # what the last token gave before may have been drawn from less
            segment.logits = segment.states = None
        segment.sound = max(segment.sound, end) if sound else min(segment.sound, first)
        segment.payer = payer
        if payer is not None:
            payer.kv_rows += len(segment.slots) - before
        new = max(0, end - max(first, segment.stored_once))
        segment.stored_once = max(segment.stored_once, end)
        if segment.parent is not None:
            segment.parent.stored_children[segment] = None
        self._victims.offer(segment)
        return new

    def take_back(self, segment: Segment, count: int, stored_once: int) -> None:
        """Undo the storing of the last ``count`` tokens; ``stored_once``: how many had ever been resident before."""
        kept = len(segment.slots) - count
        self._let_go(segment, segment.slots[kept:])
        del segment.slots[kept:]
        if segment.kept is not None:
            del segment.kept[kept:]
        segment.reach -= count
        segment.sound = min(segment.sound, segment.reach)
        segment.stored_once = stored_once

    def put_back(self, segment: Segment, before: Stored) -> None:
        """Undo the storing of tokens other than the next ones; ``before``: what was stored then. What had its slots already may
        have been written.
        """
        there = set(before.slots)
        self._let_go(segment, [slot for slot in segment.slots if slot not in there])
        segment.slots, segment.kept, segment.reach, sound, segment.stored_once = before
        segment.sound = min(sound, segment.sound)

    def restore(self, segment: Segment, slots: list[int], payer: Payer | None) -> None:
        """Give the first tokens of a segment the slots into which their KV, as the full path gives it, has been copied; those
        that are kept have theirs already.
        """
        if not segment.exact:
            segment.logits = segment.states = None
        if segment.mixed:
            self._let_go(segment, segment.slots)
            segment.forget()
        self.changes += 1
        before = len(segment.slots)
        segment.put(0, slots)
        segment.sound = max(segment.sound, len(slots))
        segment.payer = payer
        if payer is not None:
            payer.kv_rows += len(segment.slots) - before
        if segment.parent is not None:
            segment.parent.stored_children[segment] = None
        self._victims.offer(segment)

    def keep_copy(self, segment: Segment) -> None:
        """Have the KV of a segment kept outside the arena, where there is a place, before some of it is let go or moved."""
        if self.shelve is not None:
            self.shelve(segment)

    def reduce(self, segment: Segment, kept: Sequence[int], mixed: bool = False) -> None:
        """Let go of the KV of what is stored of ``segment``, but for those of its slots with the indexes ``kept``, ascending.

        ``mixed``: heads have kept tokens of their own, whose rows have been moved there after :meth:`keep_copy`. What is
        computed below is not exact from now on.
        """
        if len(kept) == len(segment.slots) and not mixed:
            return
        self.flawed = True
        if not mixed:
            self.keep_copy(segment)
        names = list(range(segment.reach)) if segment.kept is None else segment.kept
        stays = set(kept)
        self._let_go(segment, [slot for n, slot in enumerate(segment.slots) if n not in stays])
        segment.slots = [segment.slots[n] for n in kept]
        segment.kept = [names[n] for n in kept]
        segment.mixed = bool(kept) and (segment.mixed or mixed)
        self._victims.offer(segment)

    def part(self, segment: Segment, payer: Payer | None) -> None:
        """Split a segment whose first tokens are resident on another account from the rest, which is about to be stored."""
        if segment.reach and not segment.resident and segment.payer is not payer:
            self._split(segment, segment.reach)

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
                    f"{_more(count)} the {limit} this search may hold, {payer.kv_rows} of which are in use",
                    hint="raise its budget of KV bytes or expand fewer branches at once",
                )
            for _, victim in sorted(keys):
                if payer.kv_rows + count <= limit:
                    break
                self.evicted_tokens += len(victim.slots)
                self._evict(victim)

    def make_room(self, count: int) -> None:
        """Evict, or reduce, until ``count`` slots are free. Raises CacheError if what is left is in use."""
        relief = self.relief
        while self.pool.available < count:
            victim = self._victims.take(last=PROMPT if relief is None else UNREFERRED)
            if victim is None and relief is not None:
                relief(count)
                relief = None
            elif victim is None:
                pool = self.pool
                needed, other = "running branches need", ""
                if not self.policy.evicts_held:
                    needed, other = "running branches or open handles need", "let another policy evict, "
                raise CacheError(
                    f"{_more(count)} the KV budget of {pool.limit} tokens, {pool.used} of which {needed}",
                    hint=f"{other}raise the KV budget, by {(count - pool.available) * pool.row_bytes} bytes at least,"
                    " or expand fewer branches at once",
                )
            else:
                self.evicted_tokens += len(victim.slots)
                self._evict(victim)

    def rewind(self, at: Segment) -> None:
        """Let go of all KV at and below ``at``, also where work runs, which computes again what it needs."""
        below = [at]
        for segment in below:
            below.extend(segment.children.values())
        for segment in reversed(below):
            if segment.reach:
                self._evict(segment)

    def spoil(self, at: Segment) -> None:
        """Drop all KV at and below ``at``, and copies of it outside the arena: it is not what the model gives."""
        below = [at]
        for segment in below:
            below.extend(segment.children.values())
        for segment in reversed(below):
            segment.unstow()
            if segment.reach:
                self._evict(segment, copied=False)

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
            if segment.reach and _unneeded(segment):
                self._evict(segment)
        parent = at.parent
        while parent is not None and parent.start >= floor and _unneeded(parent):
            above = parent.parent
            if parent.reach:  # else it has been forgotten already
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
            stored = [child for child in segment.children.values() if child.reach]
            segment.check_integrity()
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
            child.irreplaceable = at.irreplaceable
        return child

    def _split(self, low: Segment, at: int) -> Segment:
        """Cut ``low`` before its token ``at``; the new upper part is returned, ``low`` keeps the rest and its identity."""
        parent = low.parent
        if parent is None or not 0 < at < len(low.tokens):
            raise CacheError(f"cannot split a segment of {len(low.tokens)} tokens at {at}")
        self.changes += 1
        high = self._segment(parent, low.tokens[:at], low.start)
        low.hand_over(high, at)
        high.stored_once, low.stored_once = min(at, low.stored_once), max(0, low.stored_once - at)
        high.pins, high.prompts, high.irreplaceable, high.payer = low.pins, low.prompts, low.irreplaceable, low.payer
        high.used_at, high.uses = low.used_at, low.uses
        low.tokens, low.start, low.parent = low.tokens[at:], low.start + at, high
        parent.children[high.tokens[0]] = high
        high.children[low.tokens[0]] = low
        for above, below in ((parent, high), (high, low)):
            if below.reach:
                above.stored_children[below] = None
        parent.stored_children.pop(low, None)
        if not low.reach:
            self._settle(low)
        return high

    def _settle(self, at: Segment) -> None:
        """Note that ``at`` may have become unneeded; forget it altogether if nothing of it is resident."""
        if not (at.handles or at.pins):
            at.logits = at.states = None
        over = self._over(at)
        while (parent := at.parent) is not None and (over or not at.reach) and _unneeded(at):
            if at.reach:
                self._let_go(at, at.slots)
                at.forget()
            del parent.children[at.tokens[0]]
            parent.stored_children.pop(at, None)
            at.unstow()
            at = parent
        if at.parent is None and not at.children:
            self._origins.pop(at, None)
        while not at.reach and at.parent is not None:
            at = at.parent
        self._victims.offer(at)  # the lowest resident one of the path: none above it is a leaf

    def _over(self, at: Segment) -> bool:
        """Whether what nobody needs of this path is of no use to anybody else."""
        return self.isolated and not any(segment.prompts for segment in at.lineage()[:1])

    def _let_go(self, segment: Segment, slots: list[int]) -> None:
        self.changes += 1
        self.pool.free(slots)
        if segment.payer is not None:
            segment.payer.kv_rows -= len(slots)

    def _evict(self, segment: Segment, copied: bool = True) -> None:
        if copied and self.shelve is not None and (segment.handles or segment.children):
            self.shelve(segment)
        _log.debug("evicted %d tokens from position %d on", len(segment.slots), segment.start)
        self._let_go(segment, segment.slots)
        segment.forget()
        segment.logits = segment.states = None
        if segment.parent is not None:
            segment.parent.stored_children.pop(segment, None)
        self._settle(segment)


def _unneeded(segment: Segment) -> bool:
    """Whether nobody refers to a segment, or to anything below."""
    return segment.parent is not None and not (segment.handles or segment.pins or segment.children)


def _more(count: int) -> str:
    """The begin of a sentence about tokens for which there is no room."""
    return "1 more token does not fit" if count == 1 else f"{count} more tokens do not fit"
