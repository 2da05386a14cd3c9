"""The job that answers a request for text."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.engine.base import Account, Finish, GenerateRequest
from rksc_tot.engine.jobs.generation.branches import BranchGroup, BranchingJob, Tail
from rksc_tot.engine.jobs.generation.completions import Completions
from rksc_tot.engine.jobs.generation.speculative_decoding import SpeculativeDecoding
from rksc_tot.engine.jobs.generation.verification import Verification
from rksc_tot.engine.jobs.job import DraftKV, Job
from rksc_tot.engine.jobs.random_streams import Streams
from rksc_tot.engine.jobs.sampler import Logits
from rksc_tot.engine.tokenization.find_stops import cut_at
from rksc_tot.engine.tokenization.grammar import GrammarMatcher
from rksc_tot.engine.tokenization.text import TextTokenizer
from rksc_tot.engine.tokenization.written import CONTEXT, written
from rksc_tot.policies.early_exit.cgee import confidence


class Generation(BranchingJob):
    """One :class:`~rksc_tot.engine.base.GenerateRequest`.

    Attributes
    ----------
    context
        The most tokens of a path.
    completions
        The branches that have ended.
    speculation
        Drafts of the next tokens; None until the first draft is due.
    """

    def __init__(
        self,
        tree: PrefixTree,
        base: Segment,
        request: GenerateRequest,
        account: Account,
        prompt_end: int,
        tokenizer: TextTokenizer,
        eos: frozenset[int],
        context: int,
        scratch_from: int | None,
        matcher: GrammarMatcher | None = None,
    ) -> None:
        room = min(request.max_tokens, context - base.end)
        streams = Streams(request.streams)
        super().__init__(tree, base, account, prompt_end, scratch_from, request, tokenizer, eos, streams, room)
        self.keeps_states = request.states
        self.asks = request.verifying
        self.context = context
        skipped = request.stop if request.skip_blank and matcher is None else ()
        self.completions = Completions(tree, base, scratch_from is None, skipped)
        self.speculation: SpeculativeDecoding | None = None
        before = [t for s in base.lineage()[-CONTEXT:] for t in s.tokens][-CONTEXT:]
        self.groups = [BranchGroup(base, range(len(request.streams)), written(tokenizer, before), [], matcher=matcher)]
        self.tips = [base]
        tree.hold(base)
        if room <= 0:
            self.cut_off(self.groups, "length")

    # -- which logits it waits for -----------------------------------------------------------------------------------

    @property
    def verification(self) -> Verification | None:
        """The draft tokens that are verified now."""
        return None if self.speculation is None else self.speculation.verification

    def wanted(self) -> list[Segment]:
        """Tips, or the ends of the draft tokens after them."""
        return self.tips if self.speculation is None else self.speculation.wanted()

    def awaited(self) -> Collection[Segment]:
        """All tips, and the ends of draft tokens after which logits are needed."""
        return self.tips if self.verification is None else {*self.tips, *self.verification.path}

    def ready(self) -> list[Segment]:
        """All tips, once the logits of all are known. During verification single tips may go on, if that changes no result."""
        if self.speculation is not None and self.speculation.draft is not None:
            return []
        ready = [tip for tip in self.tips if not self.lacks(tip)]
        return ready if len(ready) == len(self.tips) or (self.verification is not None and self._may_part()) else []

    def _may_part(self) -> bool:
        """Whether branches may advance at different times: no token limit, rival rule or KV limit depends on all of them."""
        if self.account.limited or self.account.kv_bytes is not None or self.request.rivals is not None:
            return False
        return self.base.end + self.room * len(self.request.streams) <= self.tree.residency.pool.guaranteed

    # -- token limits ------------------------------------------------------------------------------------------------

    @property
    def remaining_tokens(self) -> int:
        """Tokens that the job may still sample."""
        return sum((self.room - len(g.logprobs)) * len(g.branches) for g in self.groups if g.tail is None)

    def advance(
        self, logits: Logits, row: Mapping[Segment, int], tokens: Sequence[int], logprobs: Sequence[float]
    ) -> None:
        """Append the sampled tokens; end the branches that a finished rival decides."""
        if self.verification is not None:
            self.verification.compare(self.drawing_branches(), tokens, self.eos)
        super().advance(logits, row, tokens, logprobs)
        rule, unended = self.request.rivals, [group for group in self.groups if group.tail is None]
        if rule is not None and unended:
            ended = [
                confidence(done.logprobs) for done in self.completions.in_order() if done.finish in ("stop", "eos")
            ]
            if rule.decisive(ended, [confidence(group.logprobs) for group in unended]):
                self.cut_off(unended, "rival")

    # -- end of a branch ---------------------------------------------------------------------------------------------

    def finish(self, group: BranchGroup, finish: Finish, ending: float | None = None) -> None:
        """Make the completion of a group."""
        text, tail = group.written.whole, group.tail
        if tail is not None and finish == "stop":
            self.completions.add(group, tail.text, tail.tokens, group.logprobs, finish, tail.ending)
            return
        tokens, logprobs, closing = group.sampled, group.logprobs, []
        if tail is not None:
            kept = tail.sampled
            tokens, logprobs = tokens[:kept], logprobs[:kept]
            text = text[: group.written.ends[kept - 1]] if kept else ""
        if ending is not None:
            closing = self._closing(group, len(tokens))
            tokens += closing
            logprobs = [*logprobs, *[ending, *[0.0] * len(closing)][: len(closing)]]
        self.completions.add(group, text, tokens, logprobs, finish, self.request.ending if closing else "")

    def stop(self, group: BranchGroup, start: int, end: int) -> None:
        """Finish before or after the stop string. If the cut is inside a token, its kept part becomes the group's tail."""
        written, sampled = group.written, group.sampled
        cut = cut_at(written.ends, written.text, end if self.request.keep_stop else start)
        tail = self.tokenizer.continuation(cut.rest) if cut.rest else []
        ending = written.text[start:end] if self.request.keep_stop else ""
        group.logprobs = group.logprobs[: cut.kept]
        if not tail:
            self.completions.add(group, written.text[:start], sampled[: cut.kept], group.logprobs, "stop", ending)
            return
        group.tail = Tail(written.text[:start], sampled[: cut.kept], deque(tail), cut.kept, ending)
        if self.base.end + cut.kept + len(tail) > self.context:
            self.finish(group, "length")
            group.tail = None
        elif cut.kept < len(sampled) - 1:  # tokens before the last one are cut too
            group.tip = self.tree.walk(self.base, sampled[: cut.kept])

    def complete(self, group: BranchGroup) -> None:
        """Finish a constrained text that is complete. A stop string that closes it becomes its tail."""
        sampled = group.sampled
        closing = self._closing(group, len(sampled))
        if closing:
            group.tail = Tail(group.written.whole, sampled, deque(closing), len(sampled), self.request.ending)
        else:
            self.finish(group, "stop")

    def give_back(self) -> None:
        """Drop the completions, since the caller was cancelled."""
        self.completions.clear()

    def _closing(self, group: BranchGroup, written: int) -> list[int]:
        """Tokens of the text that closes a thought after end of text; empty without room or without such a text.

        A constrained text that ends with it needs none.
        """
        ending = self.request.ending
        if self.scratch_from is not None or not ending:
            return []
        if group.matcher is not None and group.written.whole.endswith(ending):
            return []
        ids = self.tokenizer.continuation(ending)
        return ids if self.base.end + written + len(ids) <= self.context else []

    # -- drafts ------------------------------------------------------------------------------------------------------

    def next_draft(self, copies: DraftKV, jobs: Sequence[Job]) -> Job | None:
        """Verify or begin a draft."""
        if self.speculation is None:
            self.speculation = SpeculativeDecoding(self)
        return self.speculation.next(copies, jobs)

    def drop_drafts(self) -> bool:
        """Drop unverified draft tokens and pause drafting, to free KV. False if there are none."""
        if self.speculation is None or self.speculation.verification is None:
            return False
        self.speculation.postpone()
        return True

    def close(self) -> None:
        """Release all segments; drop draft tokens and scratch rows."""
        if self.speculation is not None:
            self.speculation.close()
        super().close()
