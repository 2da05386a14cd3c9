"""Branches of one request, grown together on the prefix tree.

All branches of a request that have the same tokens so far form one *branch group*. The tokens of a group are computed once. A
group divides when the random numbers of its branches pick different tokens. Grouping does not change the text of a branch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.engine.base import Account, Finish, GenerateRequest
from rksc_tot.engine.jobs.job import Job
from rksc_tot.engine.jobs.random_streams import Streams
from rksc_tot.engine.jobs.sampler import Draws, Logits
from rksc_tot.engine.tokenization.find_stops import find_end
from rksc_tot.engine.tokenization.grammar import GrammarMatcher
from rksc_tot.engine.tokenization.text import TextTokenizer
from rksc_tot.engine.tokenization.written import Written


@dataclass(slots=True)
class Tail:
    """The last tokens of a text that a stop string cuts inside a token, or that closes a constrained text.

    They are appended, not sampled.

    Attributes
    ----------
    text
        The whole text, without the stop string.
    tokens
        The sampled tokens that are kept, then the tail tokens appended so far.
    left
        Tail tokens not appended yet.
    sampled
        How many of ``tokens`` were sampled.
    ending
        What follows the text on the path.
    """

    text: str
    tokens: list[int]
    left: deque[int]
    sampled: int
    ending: str


@dataclass(slots=True, eq=False)
class BranchGroup:
    """Branches with the same tokens so far.

    Attributes
    ----------
    tip
        The segment of the prefix tree that ends with the last of these tokens.
    branches
        Their numbers in the request.
    written
        The text of the sampled tokens.
    logprobs
        Log-probability of each token.
    exact
        Whether every token was drawn from exact KV.
    tail
        The tail, if a stop string cuts inside a token or closes a constrained text; else None.
    matcher
        The state of the text under the request's constraint; None without one.
    shares
        Log of the probability (nats) of the tokens that the constraint allowed, at each draw.
    """

    tip: Segment
    branches: Sequence[int]
    written: Written
    logprobs: list[float]
    exact: bool = True
    tail: Tail | None = None
    matcher: GrammarMatcher | None = None
    shares: list[float] = field(default_factory=list)

    @property
    def sampled(self) -> list[int]:
        """The sampled tokens."""
        tokens, count = self.written.tokens, len(self.written.ends)
        return tokens[len(tokens) - count :]


class BranchingJob(Job):
    """Grows the branches of one request until all have ended.

    Attributes
    ----------
    request
        Sampling and stop strings.
    eos
        Ids of the tokens that end a text.
    streams
        The random numbers of each branch.
    groups
        Branch groups that have not ended.
    room
        The most tokens of a branch.
    step
        Number of draws so far.
    most_steps
        Limit on draws; None: no limit.
    pays
        Whether sampled tokens are taken from the account.
    """

    writes = True
    pays = True
    most_steps: int | None = None

    def __init__(
        self,
        tree: PrefixTree,
        base: Segment,
        account: Account,
        prompt_end: int,
        scratch_from: int | None,
        request: GenerateRequest,
        tokenizer: TextTokenizer,
        eos: frozenset[int],
        streams: Streams,
        room: int,
    ) -> None:
        super().__init__(tree, base, account, prompt_end, scratch_from)
        self.request = request
        self.tokenizer = tokenizer
        self.eos = eos
        self.streams = streams
        self.room = room
        self.groups: list[BranchGroup] = []
        self.step = 0
        self._going: list[BranchGroup] = []  # groups that draw in this step

    # -- subclasses define these --------------------------------------------------------------------------------------

    def finish(self, group: BranchGroup, finish: Finish, ending: float | None = None) -> None:
        """Make the result of a group. ``ending``: log-probability of the end-of-text token, if that was drawn."""
        raise NotImplementedError

    def stop(self, group: BranchGroup, start: int, end: int) -> None:
        """End a group whose text has a stop string from ``start`` to ``end``: finish it, or give it a tail."""
        raise NotImplementedError

    def complete(self, group: BranchGroup) -> None:
        """End a group whose text is complete under the constraint: finish it, or give it a tail."""
        raise NotImplementedError

    # -- drawing tokens ----------------------------------------------------------------------------------------------

    def draws(self, ready: Collection[Segment], row: Mapping[Segment, int]) -> Draws:
        """The draws of all branches whose tips are ready. Branches beyond the token budget are finished."""
        self._going = [group for group in self.groups if group.tip in ready]
        drawing = [group for group in self._going if group.tail is None]
        wanted = sum(len(group.branches) for group in drawing)
        granted = self.account.take(wanted) if self.pays else wanted
        rows: list[int] = []
        masks: list[Any] = []
        uniforms: list[Any] = [np.empty(0)]
        for group in drawing:
            cut, group.branches = group.branches[granted:], group.branches[:granted]
            granted -= len(group.branches)
            if cut:
                self.finish(replace(group, branches=cut), "budget")
            rows += [row[group.tip]] * len(group.branches)
            uniforms.append(self.streams[len(group.logprobs)][group.branches])
            if group.matcher is not None:
                masks += [group.matcher.allowed] * len(group.branches)
        if masks and self.pays:
            self.account.ledger.constrained_tokens += len(rows)
        for group in self._going:
            group.exact = group.exact and group.tip.kv.exact
        return Draws(rows, np.concatenate(uniforms), self.request.sampling, masks)

    def advance(
        self, logits: Logits, row: Mapping[Segment, int], tokens: Sequence[int], logprobs: Sequence[float]
    ) -> None:
        """Append the sampled tokens, in the order of :meth:`draws`, and the next token of each tail."""
        self.step += 1
        self.decoding = True
        drawn = iter(zip(tokens, logprobs, strict=True))
        self.groups = [group for group in self.groups if group not in self._going]
        for group in self._going:
            tip = group.tip
            if group.tail is None:
                self._divide(group, drawn, logits, row)
            else:
                self._take(group, group.tail, logits, row, tip.pins == 1)
            self.tree.residency.unpin(tip)
        self._stand()

    def cut_off(self, groups: Sequence[BranchGroup], finish: Finish) -> None:
        """Finish groups with the tokens they have."""
        for group in groups:
            self.finish(group, finish)
        for group in groups:
            (self.tree.residency.unpin if self.running else self.tree.drop)(group.tip)
        self.groups = [group for group in self.groups if group not in groups]
        self._stand()

    def expire(self) -> None:
        """Finish all groups with the tokens they have."""
        self.cut_off(self.groups, "budget")

    def drawing_branches(self) -> list[int]:
        """The branches that drew a token in this step, in the order of :meth:`draws`."""
        return [branch for group in self._going if group.tail is None for branch in group.branches]

    def full(self, group: BranchGroup) -> bool:
        """Whether a group is at its token limit."""
        return len(group.logprobs) >= self.room or (self.most_steps is not None and self.step >= self.most_steps)

    def _stand(self) -> None:
        """Update the tips from the groups; end the job if no group is left."""
        self.tips = [group.tip for group in self.groups]
        if not self.tips:
            self.end(None)

    def _divide(
        self, group: BranchGroup, drawn: Iterator[tuple[int, float]], logits: Logits, row: Mapping[Segment, int]
    ) -> None:
        """Make a group of the branches that drew the same token, for each token drawn."""
        heirs: dict[int, tuple[list[int], float]] = {}
        for branch, (token, logprob) in zip(group.branches, drawn, strict=False):
            heirs.setdefault(token, ([], logprob))[0].append(branch)
        alone = len(heirs) == 1 and group.tip.pins == 1
        matcher, shares = group.matcher, group.shares
        if matcher is not None and heirs:
            shares = [*shares, logits.log_mass(row[group.tip], matcher.allowed)]
        for n, (token, (branches, logprob)) in enumerate(heirs.items()):
            if token in self.eos:
                self.finish(replace(group, branches=branches, shares=shares), "eos", logprob)
                continue
            last = n == len(heirs) - 1
            written = group.written if last else group.written.fork()
            heir = BranchGroup(group.tip, branches, written, [*group.logprobs, logprob], group.exact)
            searched = written.push(token)
            asked = self.request
            if matcher is not None:
                heir.matcher, heir.shares = matcher if last else matcher.fork(), shares
                self._constrained(heir, token, alone)
            elif stop := find_end(written.text, searched, asked.stop, asked.skip_blank, asked.rule):
                self.stop(heir, *stop)
                if heir.tail is None:
                    continue
                if heir.tip is group.tip:  # the cut token was drawn from the same logits
                    self._take(heir, heir.tail, logits, row, alone)
                else:
                    self._add(heir, heir.tip)
            elif self.full(heir):
                self.finish(heir, "length")
            else:
                self._add(heir, self.tree.step(group.tip, token, alone))

    def _constrained(self, group: BranchGroup, token: int, alone: bool) -> None:
        """Go on with a group under a constraint after it drew a token, or end it."""
        matcher = group.matcher
        if matcher is None:
            return
        matcher.push(token)
        if matcher.complete:
            self.complete(group)
            ended = group.tail is None
        elif ended := matcher.stuck or self.full(group):
            self.finish(group, "stuck" if matcher.stuck else "length")
        if not ended:
            self._add(group, self.tree.step(group.tip, token, alone))

    def _take(self, group: BranchGroup, tail: Tail, logits: Logits, row: Mapping[Segment, int], alone: bool) -> None:
        """Append the next token of a tail, with its log-probability under the model."""
        token = tail.left.popleft()
        tail.tokens.append(token)
        group.logprobs = [*group.logprobs, float(logits.logprobs(row[group.tip], [token])[0])]
        if tail.left:
            self._add(group, self.tree.step(group.tip, token, alone))
        else:
            self.finish(group, "stop")

    def _add(self, group: BranchGroup, tip: Segment) -> None:
        """Continue a group from a tip."""
        group.tip = tip
        self.tree.residency.pin(tip)
        self.groups.append(group)
