"""What runs in the engine. A generation grows a token trie; what only reads is in ``asking``.

All branches of a generation that have written the same tokens so far stand on one *twig*: its tokens are computed once,
however many branches wrote them. Branches part when their private random numbers pick different tokens. What a branch
writes is what it would have written alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.engine.base import Account, Completion, Finish, GenerateRequest
from rksc_tot.engine.jobs.job import Job
from rksc_tot.engine.jobs.random_streams import Streams
from rksc_tot.engine.jobs.sampler import Draws, Logits
from rksc_tot.engine.tokenization.text import Written, continuation, cut_at, find_stop
from rksc_tot.policies.early_exit.cgee import RivalStop, confidence

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rksc_tot.engine.jobs.drafted_tokens import Ahead

CONTEXT_FOR_DECODER = 4  # tokens before a continuation that the decoder sees
UNDRAFTED = 16  # draws without a draft where there was no room for one


class BranchGroup:
    """A tip of the trie that waits for next-token logits, and the branches that stand on it."""

    __slots__ = ("branches", "exact", "logprobs", "tip", "written")

    def __init__(
        self, tip: Segment, branches: Sequence[int], written: Written, logprobs: list[float], exact: bool = True
    ) -> None:
        self.tip = tip
        self.branches = branches
        self.written = written
        self.logprobs = logprobs
        self.exact = exact  # whether all was drawn upon the KV of the full path


class Generation(Job):
    """One :class:`GenerateRequest`."""

    writes = True

    def __init__(
        self,
        tree: PrefixTree,
        base: Segment,
        request: GenerateRequest,
        account: Account,
        tokenizer: PreTrainedTokenizerBase,
        eos: frozenset[int],
        context: int,
        scratch_from: int | None,
    ) -> None:
        super().__init__(tree, base, account, scratch_from)
        self.request = request
        self.keeps_states = request.states
        self.tokenizer = tokenizer
        self.eos = eos
        self.context = context
        self.room = min(request.max_tokens, context - base.end)
        self.streams = Streams(request.streams)
        self.done: list[Completion] = []
        self.states: dict[Segment, Any] = {}  # by the end of a completion: [L, H] of the row that predicts it
        self.step = 0  # draws so far
        self.draft: Job | None = None  # what drafts the next tokens at the moment
        self.ahead: Ahead | None = None  # what was drafted
        self.undrafted = 1  # draws before the next draft may begin
        before = [t for s in base.lineage()[-CONTEXT_FOR_DECODER:] for t in s.tokens][-CONTEXT_FOR_DECODER:]
        first = BranchGroup(base, range(len(request.streams)), Written(tokenizer, before), [])
        self.groups = [first]
        self._going: list[BranchGroup] = []  # those that draw now
        tree.hold(base)
        self.before = len(before)
        if self.room <= 0:
            self._finish(first, first.branches, "length")
            self.leave()
            self.end(self.completions())

    def lacks(self, tip: Segment) -> bool:
        """Whether logits are missing, or the states that thoughts are to be compared by."""
        return super().lacks(tip) or (self.request.states and tip.states is None)

    def tips(self) -> list[Segment]:
        return [group.tip for group in self.groups]

    def wanted(self) -> list[Segment]:
        """Nothing while the next tokens are being drafted; then the ends of what was, and tips on the way there."""
        if self.draft is not None:
            return []
        if self.ahead is None:
            return self.tips()
        return list(dict.fromkeys([*self.ahead.leaves, *(tip for tip in self.tips() if tip in self.ahead.met)]))

    def awaited(self) -> Collection[Segment]:
        """All tips, and the ends of drafted tokens before which logits are wanted."""
        return self.tips() if self.ahead is None else {*self.tips(), *self.ahead.met}

    def ready(self) -> list[Segment]:
        """All tips, once none lacks anything; of a generation that was drafted, where it may be, each as far as it can go."""
        if self.draft is not None:
            return []
        tips = self.tips()
        ready = [tip for tip in tips if not self.lacks(tip)]
        return ready if len(ready) == len(tips) or (self.ahead is not None and self._may_part()) else []

    def draws(self, row: Mapping[Segment, int]) -> Draws:
        """What every branch draws now whose tip is ready. Branches the budget cuts off are finished."""
        ready = set(self.ready())
        self._going = [group for group in self.groups if group.tip in ready]
        granted = self.grant(sum(len(group.branches) for group in self._going))
        rows: list[int] = []
        uniforms: list[Any] = []
        for group in self._going:
            cut, group.branches = group.branches[granted:], group.branches[:granted]
            granted -= len(group.branches)
            if cut:
                self._finish(group, cut, "budget")
            group.exact = group.exact and group.tip.exact
            rows += [row[group.tip]] * len(group.branches)
            uniforms.append(self.streams[len(group.logprobs)][group.branches])
        return Draws(rows, np.concatenate(uniforms), self.request.sampling)

    def advance(
        self, logits: Logits, row: Mapping[Segment, int], tokens: Sequence[int], logprobs: Sequence[float]
    ) -> None:
        """Take the tokens drawn, in the order of :meth:`draws`."""
        self.step += 1
        self.decoding = True
        if self.ahead is not None:
            self.ahead.meet([branch for group in self._going for branch in group.branches], tokens, self.eos)
        at, live = 0, [group for group in self.groups if group not in self._going]
        for group in self._going:
            heirs: dict[int, tuple[list[int], float]] = {}
            for branch in group.branches:
                heirs.setdefault(tokens[at], ([], logprobs[at]))[0].append(branch)
                at += 1
            alone = len(heirs) == 1 and group.tip.pins == 1
            for n, (token, (branches, logprob)) in enumerate(heirs.items()):
                if token in self.eos:
                    self._finish(group, branches, "eos", ending=logprob)
                    continue
                last = n == len(heirs) - 1
                written = group.written if last else group.written.fork()
                heir = BranchGroup(group.tip, branches, written, [*group.logprobs, logprob], group.exact)
                searched = written.push(token)
                stop = find_stop(written.text, searched, self.request.stop)
                if stop:
                    self._finish(heir, branches, "stop", stop)
                elif self.full(heir):
                    self._finish(heir, branches, "length")
                else:
                    heir.tip = self.tree.step(group.tip, token, alone)
                    self.tree.pin(heir.tip)
                    live.append(heir)
            self.tree.unpin(group.tip)
        self.groups = live
        if not live:
            self.end(self.completions())
        elif self.request.rivals is not None and self._decided(self.request.rivals):
            self._cut_off("rival")

    def grant(self, wanted: int) -> int:
        """How many tokens may be drawn; they are paid for."""
        return self.account.take(wanted)

    def full(self, group: BranchGroup) -> bool:
        """Whether a twig may not grow any more."""
        return len(group.logprobs) >= self.room

    def settle(self) -> None:
        """What was drafted is no concern any more."""
        if self.ahead is not None:
            self.ahead.close()
            self.ahead = None
            for group in self.groups:
                self.tree.join(group.tip)

    def crowd_out(self) -> bool:
        """Drop what was drafted, and draft no more for a while. False if nothing was."""
        had = self.ahead is not None
        if had:
            self.draft_later()
        return had

    def draft_later(self) -> None:
        """There is no room for what was drafted, or for a draft."""
        self.settle()
        self.undrafted = self.step + UNDRAFTED

    @property
    def remaining_tokens(self) -> int:
        """Tokens that it may still draw."""
        return sum((self.room - len(group.logprobs)) * len(group.branches) for group in self.groups)

    def close(self) -> None:
        """Let go of everything; drop what was scratch, or drafted."""
        self.settle()
        if self.draft is not None and not self.draft.ended:
            self.draft.expire()
        super().close()

    def _may_part(self) -> bool:
        """Whether branches need not go in step. What an account grants, who is decisive, and what fits, goes by all of them."""
        if self.account.limited or self.account.kv_bytes is not None or self.request.rivals is not None:
            return False
        return self.base.end + self.room * len(self.request.streams) <= self.tree.pool.limit

    def _decided(self, rule: RivalStop) -> bool:
        """Whether a branch that has ended is decisive over all that still run."""
        ended = [confidence(done.logprobs) for done in self.done if done.finish in ("stop", "eos")]
        return rule.decisive(ended, [confidence(group.logprobs) for group in self.groups])

    def expire(self) -> None:
        """Finish every branch where it stands."""
        self._cut_off("budget")

    def _cut_off(self, finish: Finish) -> None:
        for group in self.groups:
            self._finish(group, group.branches, finish)
        self.leave()
        self.end(self.completions())

    def leave(self) -> None:
        """Give up all twigs."""
        super().leave()
        self.groups = []

    def completions(self) -> list[Completion]:
        """All completions, ordered by their first branch; branches that wrote the same are one."""
        merged: dict[object, Completion] = {}
        for completion in sorted(self.done, key=lambda c: c.branches[0]):
            first = merged.setdefault((completion.text, completion.tokens, completion.finish), completion)
            if first is not completion:
                branches = tuple(sorted(first.branches + completion.branches))
                merged[completion.text, completion.tokens, completion.finish] = first._replace(branches=branches)
                if completion.handle is not None:
                    self.tree.drop(completion.handle)
        self.done = list(merged.values())
        return self.done

    def give_back(self) -> None:
        """Drop the results nobody will take."""
        for completion in self.done:
            if completion.handle is not None:
                self.tree.drop(completion.handle)
        self.done = []

    def _finish(
        self,
        group: BranchGroup,
        branches: Sequence[int],
        finish: Finish,
        stop: tuple[int, int] | None = None,
        ending: float | None = None,
    ) -> None:
        """Make a completion. ``stop``: where the stop string stands; ``ending``: log-probability of the end-of-text."""
        text = group.written.text
        shown, length = (stop[0], stop[1] if self.request.keep_stop else stop[0]) if stop else (len(text), len(text))
        cut = cut_at(group.written.ends, text, length)
        sampled = group.written.tokens[self.before :]
        rest = continuation(self.tokenizer, cut.rest) if cut.rest else []
        tokens = (*sampled[: cut.kept], *rest)
        logprobs = group.logprobs[: cut.kept]
        if rest:  # the token the cut runs through stands for its kept part
            logprobs = [*logprobs, group.logprobs[cut.kept], *[0.0] * (len(rest) - 1)]
        if ending is not None:
            closing = self._closing(len(tokens))
            tokens = (*tokens, *closing)
            logprobs = [*logprobs, *[ending, *[0.0] * len(closing)][: len(closing)]]
        handle = None
        if self.scratch_from is None:
            handle = self.tree.walk(self.base, tokens)
            self.tree.hold(handle)
            self.states[handle] = group.tip.states
        self.done.append(
            Completion(text[:shown], tokens, tuple(logprobs), finish, tuple(branches), handle, group.exact)
        )

    def _closing(self, written: int) -> list[int]:
        """What stands for an end-of-text on the path, so that a thought after it begins as after any other."""
        if self.scratch_from is not None or not (self.request.keep_stop and self.request.stop):
            return []
        ids = continuation(self.tokenizer, self.request.stop[0])
        return ids if self.base.end + written + len(ids) <= self.context else []
