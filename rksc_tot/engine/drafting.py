"""VeriCache: tokens are drafted upon reduced paths and verified upon the full ones, so that what comes out is exact.

Feng et al. 2026, https://arxiv.org/abs/2605.17613. Of the paper the abstract was at hand: draft some tens of tokens with
compressed KV, verify them in one pass with all of it, keep what agrees, let both go on from there.

::

    full path    h h h a a a a a a t ──────────► d d d d d d      one pass gives the logits after t and after every d
    twin         h h   a   a   a a   t d d d d d d ▲              drafted upon what a keep policy left; forgotten afterwards

A *twin* is a copy of a path's KV, taken from the full one and reduced by the keep policy. It hangs from an origin of its own, so
no exact request ever meets it. Drafts use the branches' own random numbers. To verify, the drafted tokens go through the
model as any others of the path, and the generation draws as it always does: as long as it draws what was drafted, the next
logits are there already. So nothing has to be compared for the result to be right, and it is the same whatever was drafted.
While drafts are written the full path is not in use, and may be evicted or offloaded.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

from pydantic import Field

from rksc_tot.cache.arena import Arena
from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.engine.base import Account, Finish
from rksc_tot.engine.jobs import Generation, Job, Twig
from rksc_tot.engine.keeping import Keeper
from rksc_tot.errors import CacheError, ConfigError, KeepError
from rksc_tot.guard import shown
from rksc_tot.ledger import Verified
from rksc_tot.settings import Settings

_log = logging.getLogger("rksc_tot")
END = -1
"""Stands for any end-of-text token."""


class Lossless(Settings):
    """How drafts are written.

    Parameters
    ----------
    horizon
        Tokens a branch drafts before they are verified, at most. The paper has 25 to 40. A draft is at most twice as long as
        what was accepted of the one before.
    share
        Of a path's tokens, the share that a tree policy may keep for drafts; a path policy has its own budget.
    """

    kind = "lossless"
    horizon: int = Field(32, ge=1, le=1024)
    share: float = Field(0.5, gt=0, le=1, allow_inf_nan=False)


def lossless_settings(given: bool | Lossless) -> Lossless | None:
    """How drafts are written, None for none; True stands for the usual settings.

    Raises
    ------
    ConfigError
        If it is neither true nor false nor such settings.
    """
    if isinstance(given, bool):
        return Lossless() if given else None
    if not isinstance(cast("object", given), Lossless):
        raise ConfigError(
            f"lossless is {shown(given)}",
            hint="it takes True, False or a Lossless object, such as Lossless(horizon=16)",
        )
    return given


class Draft(Generation):
    """What the branches of a generation would write next upon twins of their paths. It pays for no token and keeps nothing.

    ``twins``: of each twig's path without its last token, which is computed here for the draft alone.
    """

    def __init__(self, parent: Generation, twins: Sequence[Segment], horizon: int) -> None:
        Job.__init__(self, parent.tree, twins[0], parent.account, None)
        self.parent = parent
        self.horizon, self.room = horizon, parent.room
        self.prompt = parent.prompt
        self.request = replace(parent.request, rivals=None, states=False)
        self.tokenizer, self.eos, self.streams = parent.tokenizer, parent.eos, parent.streams
        self.step = 0
        self.draft, self.ahead = None, None
        self.done = []
        self.drafted: list[Drafted] = []
        self.twins = list(twins)
        self.twigs, self._going = [], []
        for twig, twin in zip(parent.twigs, twins, strict=True):
            self.tree.hold(twin)
            tip = self.tree.walk(twin, twig.tip.tokens[-1:])
            self.tree.hold(tip)
            self.twigs.append(Twig(tip, twig.branches, twig.written.fork(), twig.logprobs))

    def grant(self, wanted: int) -> int:
        """All: only what is drawn in earnest is paid for."""
        return wanted

    def full(self, twig: Twig) -> bool:
        """Whether a twig may not grow any more, or need not for now."""
        return self.step >= self.horizon or self.parent.full(twig)

    def fail(self, error: Exception) -> None:
        """A draft that cannot go on has ended."""
        self.expire()

    def close(self) -> None:
        """Let go of everything; of what was drafted upon the twins nothing is left."""
        self.leave()
        self.tree.drop(self.base)
        for twin in self.twins:
            self.tree.drop(twin)
            for child in list(twin.children.values()):
                self.tree.discard(child, child.start)

    def _finish(
        self,
        twig: Twig,
        branches: Sequence[int],
        finish: Finish,
        stop: tuple[int, int] | None = None,
        ending: float | None = None,
    ) -> None:
        written = twig.written.tokens[self.parent.before :]
        if finish == "eos":
            written = [*written, END]
        self.drafted.append(Drafted(branches, written, finish in ("stop", "eos") or self.parent.full(twig)))


class Drafted(NamedTuple):
    """What branches have written since their generation began; ``over``: the last token ends it, so nothing comes after it."""

    branches: Sequence[int]
    tokens: list[int]
    over: bool


@dataclass(slots=True)
class Ahead:
    """Drafted tokens that a generation is about to meet.

    ``leaves``: ends of what passes compute of them, pinned. ``met``: these and all ends of tokens before, where logits are
    wanted. ``start``: position of the first of them. ``guesses``: by branch, what was drafted and not met yet.
    """

    tree: PrefixTree
    ledger: Verified
    start: int
    leaves: list[Segment]
    met: set[Segment]
    guesses: dict[int, deque[int]]
    runs: dict[int, int] = field(default_factory=dict)  # by branch, how many were accepted

    @property
    def longest(self) -> int:
        """The most that was accepted of one branch."""
        return max(self.runs.values(), default=0)

    def meet(self, branches: Sequence[int], tokens: Sequence[int], eos: frozenset[int]) -> None:
        """See what the branches drew. Where it is not as drafted, what was drafted after it is void, too."""
        for branch, token in zip(branches, tokens, strict=True):
            guessed = self.guesses[branch]
            if guessed and guessed[0] == (END if token in eos else token):
                guessed.popleft()
                self.ledger.accepted += 1
                self.runs[branch] = self.runs.get(branch, 0) + 1
            else:
                self.ledger.rejected += len(guessed)
                guessed.clear()

    def close(self) -> None:
        """Let go of what nobody went on from."""
        self.ledger.rejected += sum(map(len, self.guesses.values()))
        for leaf in self.leaves:
            self.tree.unpin(leaf)
        for leaf in self.leaves:
            self.tree.discard(leaf, self.start)


class Drafter:
    """Has generations drafted and verified, in turn. ``limit``: tokens that may be resident on an account."""

    def __init__(
        self,
        settings: Lossless,
        keeper: Keeper,
        tree: PrefixTree,
        arena: Arena,
        limit: Callable[[Account], int | None],
    ) -> None:
        self.limit = limit
        self.settings = settings
        self.keeper = keeper
        self.tree = tree
        self.arena = arena
        self._shadow = tree.sprout()
        self._broken = False  # whether the policy has failed

    def turn(self, jobs: Sequence[Job]) -> list[Draft]:
        """Put what has been drafted before the generations, and begin the next drafts, which are returned."""
        begun = []
        for job in jobs:
            if isinstance(job, Generation) and not isinstance(job, Draft) and not job.ended:
                if isinstance(job.draft, Draft) and job.draft.ended:
                    self._verify(job, job.draft.drafted)
                elif job.draft is None and not job.ready():
                    horizon = self.settings.horizon
                    if job.ahead is not None:
                        if any(map(job.lacks, job.wanted())):
                            continue  # passes have not got to all that was drafted
                        horizon = min(horizon, max(1, 2 * job.ahead.longest))
                        job.settle()
                    if self._may(job, jobs) and (draft := self._begin(job, horizon)):
                        begun.append(draft)
        return begun

    def forget(self) -> None:
        """Let go of the twins that nobody uses."""
        for twin in list(self._shadow.children.values()):
            self.tree.discard(twin, 0)

    def _may(self, job: Generation, jobs: Sequence[Job]) -> bool:
        """Whether it is time for a draft: passes have got to all of the paths but their last tokens, and the order in which
        branches draw is no matter.
        """
        if self._broken or not job.running or job.step < job.undrafted or not _enough(job, jobs):
            return False
        missing = [(tip, lack) for tip in job.tips() for lack in self.tree.missing(tip, job.exact)]
        return all(segment is tip and first == len(tip.tokens) - 1 for tip, (segment, first) in missing)

    def _begin(self, job: Generation, horizon: int) -> Draft | None:
        """A draft of the next tokens, running; None where there is no room for it."""
        twins: list[Segment] = []
        draft = None
        self.keeper.ledger = job.account.ledger.keep
        try:
            twins.extend(self._twin(job, twig.tip) for twig in job.twigs)
            draft = job.draft = Draft(job, twins, horizon)
            draft.start()
            job.pause()
        except KeepError as error:
            self._broken = True
            _log.warning("nothing is drafted any more: %s", " ".join(str(error).split()))
        except CacheError:
            job.crowd_out()
        for twin in twins:
            self.tree.unpin(twin)
        return draft

    def _verify(self, job: Generation, drafted: Sequence[Drafted]) -> None:
        """Put the drafted tokens on the path, each a segment of its own, so that logits are given at each."""
        job.draft = None
        twigs = {branch: twig for twig in job.twigs for branch in twig.branches}
        ledger = job.account.ledger.verified
        ahead = Ahead(self.tree, ledger, max(twig.tip.end for twig in job.twigs), [], set(), {})
        for branches, tokens, over in drafted:
            twig = twigs[branches[0]]
            known = len(twig.logprobs)
            at = twig.tip
            ahead.met.add(at)
            for token in tokens[known : len(tokens) - over]:
                at = self.tree.walk(at, (token,))
                ahead.met.add(at)
            self.tree.pin(at)
            ahead.leaves.append(at)
            ahead.start = min(ahead.start, twig.tip.end)
            ahead.guesses |= {branch: deque(tokens[known:]) for branch in branches}
        ledger.drafted += sum(map(len, ahead.guesses.values()))
        ledger.rounds += 1
        job.ahead = ahead

    def _twin(self, job: Generation, tip: Segment) -> Segment:
        """The twin of a path without its last token, pinned; what it lacks is copied from the path, which is resident.

        Raises
        ------
        CacheError
            If there is no room.
        """
        *above, last = tip.lineage()
        at = self._shadow
        for tokens in (*(segment.tokens for segment in above), last.tokens[:-1]):
            at = self.tree.walk(at, tokens)
        self.tree.pin(at)
        try:
            for segment, _ in self.tree.missing(at)[:1]:
                self.tree.part(segment, job.payer)
            for segment, first in self.tree.missing(at):
                for low in range(first, len(segment.tokens), self.keeper.chunk):
                    self._copy(job, tip, segment, range(low, min(low + self.keeper.chunk, len(segment.tokens))))
                    self.keeper.bring_down(segment, job.prompt, self.settings.share)
        except CacheError:
            self.tree.unpin(at)
            raise
        return at

    def _copy(self, job: Generation, tip: Segment, twin: Segment, tokens: range) -> None:
        """Give these tokens of a segment of a twin the KV they have on the path to ``tip``."""
        if (limit := self.limit(job.account)) is not None:
            self.tree.make_room_within(len(tokens), limit, job.account)
        self.tree.make_room(len(tokens))
        slots = self.tree.pool.allocate(len(tokens))
        self.tree.store(twin, slots, job.payer, tokens.start)
        first, stop = twin.start + tokens.start, twin.start + tokens.stop
        source = [slot for segment in tip.lineage() for slot in segment.read(first, stop)[0]]
        self.arena.reserve(self.tree.pool.extent)
        self.arena.copy(source, slots)


def _enough(job: Generation, jobs: Sequence[Job]) -> bool:
    """Whether no branch will be cut off because another one has drawn the last token that was to be had."""
    account: Account | None = job.account
    while account is not None:
        if account.tokens_left is not None:
            drawing = [other for other in jobs if isinstance(other, Generation) and not isinstance(other, Draft)]
            if sum(other.thirst for other in drawing if other.account.draws_on(account)) > account.tokens_left:
                return False
        account = account.run
    return True
