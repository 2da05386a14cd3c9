"""Generates candidate thoughts after nodes: the engine call of ``Search.expand``, in both modes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rksc_tot.core.errors import ConfigError, ContextOverflow
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, plain_str, shown
from rksc_tot.core.seeds import stream_keys
from rksc_tot.core.task import Path, Prompt, Task, Thought, ThoughtFinish
from rksc_tot.core.task.end_of_thought import accepts_truncated, boundary_of, most_tokens
from rksc_tot.core.task.task_settings import plain_prompt, prompt_fault
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import Account, Engine, Finish, GenerateRequest, Sampling
from rksc_tot.search.approximate.approximations import Approximations
from rksc_tot.search.approximate.prompt_variants import Start
from rksc_tot.search.task_calls import ENDED, Around, constraint_of
from rksc_tot.search.thoughts.closing import BRANCH, NO_REPLY, Closer
from rksc_tot.search.thoughts.replies import Refusal, send
from rksc_tot.search.thoughts.thinking import ThinkingBlocks, thinking_engine
from rksc_tot.search.thoughts.thinking_block import NO_BLOCK, Reply, ThinkingBlock
from rksc_tot.search.validation import Fault

CUT_BY_BUDGET = "cut off by the budget - raise it"
STUCK = "no token can follow: the tokens cannot spell what the constraint asks for, or it is too complex"
FINISH: dict[Finish, ThoughtFinish] = {
    "stop": "stop", "eos": "eos", "length": "length", "budget": "length", "stuck": "length"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CandidateThought:
    """A text that may become a node.

    * ``branch``: last part of the node's branch name. ``count``: number of branches that wrote this text.
    * ``finish``: why the generation of the text ended.
    * ``handle``: the engine's handle of the path with this text, None for a proposed thought.
    * ``ending``: the stop string to append when the text is tokenised again. ``around``: what is around the text on the path of
      ``handle``; None without a handle.
    * ``exact``: False if it was generated from approximate KV.
    * ``cut``: whether the budget cut it off. Its node is not returned by ``expand``, as no tokens are left to go on.
    * ``closing``: the text that asked for it, if it is the reply to ``Task.closing``.
    * ``parsed``: its thought, or why it is rejected, if it was parsed before (see ``observation.py``).
    * ``fault``: why it is rejected before the task parses it, None if it is not.
    * ``block``: its thinking block.
    """

    parent: Node
    path: Path
    text: str
    branch: str
    count: int = 1
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    constrained_logprobs: tuple[float, ...] = ()
    finish: ThoughtFinish = "stop"
    handle: Any = None
    ending: str = ""
    exact: bool = True
    cut: bool = False
    closing: str | None = None
    parsed: Thought | str | None = None
    fault: str | None = None
    block: ThinkingBlock = NO_BLOCK
    around: Around | None = None


def sampling_of(default: Task | Sampling, given: Mapping[str, Any]) -> Sampling:
    """The sampling of ``default`` with the fields in ``given`` replaced.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """
    return Sampling(**{**{name: getattr(default, name) for name in Sampling.model_fields}, **given})


@dataclass
class ThoughtGenerator:
    """Generates candidate thoughts for a task with an engine.

    Parameters
    ----------
    task, problem, engine, account
        Of the search.
    sampling : Sampling
        The sampling where a strategy sets no temperature.
    names : tuple
        Seed and problem: the beginning of every random stream's name.
    closer : Closer
        The nodes that are closed instead of expanded.
    approximations : Approximations
        Prompt variants for the first thoughts, merging of similar siblings, and rival stop.
    states : bool
        Whether the verifier reads the hidden states at the ends of thoughts.
    """

    task: Task
    problem: Any
    engine: Engine
    account: Account
    sampling: Sampling
    names: tuple[object, ...]
    closer: Closer
    approximations: Approximations
    states: bool
    _blocks: ThinkingBlocks | None = field(default=None, init=False)

    def open(self, prompt: Prompt) -> Any:
        """The handle of the root: its prompt, without a thinking block that it opens.

        Raises
        ------
        ConfigError
            If the task has ``thinking`` and the model's markers are not known, or there are prompt variants.
        """
        thinking = self.task.thinking
        if thinking is None:
            return self.engine.open(prompt, self.account)
        if self.approximations.prompt_variants is not None:
            raise ConfigError("thinking and prompt variants cannot be combined", hint="leave one of them out")
        engine = thinking_engine(self.engine)
        form, ledger = engine.thinking_format(prompt, thinking.markers), self.account.ledger
        self._blocks = ThinkingBlocks(thinking, self.task.max_thoughts, form, engine, ledger, self._ending)
        return engine.open(prompt, self.account, form)

    async def generate(
        self, wanted: Sequence[tuple[Node, Path, int]], *, temperature: float | None, round: int
    ) -> tuple[list[CandidateThought], bool]:
        """Generate for each (node, path of the node, number of thoughts). A node that is due for its closing gets that instead.

        Returns
        -------
        tuple
            The candidates in order, and whether a budget cut any of them short.

        Raises
        ------
        ContextOverflow, ConstraintError
            If the context has no room for a thought after the root's prompt, or the engine refuses the constraint of the first
            thoughts. A deeper node gets a candidate with a ``fault``.
        """
        sampling = self.sampling if temperature is None else sampling_of(self.sampling, {"temperature": temperature})
        starts = [(node, path, k, start) for node, path, k in wanted for start in await self._starts(node, k)]
        asked = [self._request(node, path, k, start, sampling, round) for node, path, k, start in starts]
        sent = [
            (None if start is None else node, path, request)
            for (node, path, _, start), request in zip(starts, asked, strict=True)
            if isinstance(request, GenerateRequest)
        ]
        try:
            replies = iter(await self._replies(sent))
        finally:
            for (*_, start), request in zip(starts, asked, strict=True):
                if start is None and isinstance(request, GenerateRequest):
                    self.engine.release(request.handle)
        candidates: list[CandidateThought] = []
        cut = False
        for (node, path, k, start), request in zip(starts, asked, strict=True):
            reply = next(replies) if isinstance(request, GenerateRequest) else request
            if isinstance(reply, Refusal) and node.parent is None and start is not None:
                raise reply
            if isinstance(reply, Refusal | str):
                closing = self.closer.text if start is None else None
                candidates.append(CandidateThought(node, path, "", "0", closing=closing, fault=_text(reply)))
                continue
            cut = cut or any(completion.finish == "budget" for completion, _ in reply)
            constrained = isinstance(request, GenerateRequest) and request.constraint is not None
            if start is None:
                candidates += self._closed(node, path, reply)
            elif self.task.mode == "propose":
                candidates += self._proposed(node, path, k, reply, round, constrained)
            else:
                candidates += self._sampled(node, path, start, reply, round, constrained)
        return candidates, cut

    async def _starts(self, node: Node, k: int) -> Sequence[Start | None]:
        """Where the branches of a node start; None: the node gets its closing."""
        if self.closer.due(node):
            return [None]
        variants = self.approximations.prompt_variants
        if variants is None or node.parent is not None or self.task.mode == "propose":
            return [Start(node._handle, True, range(k))]
        return await variants.assign(node._handle, k)

    def _request(
        self, node: Node, path: Path, k: int, start: Start | None, sampling: Sampling, round: int
    ) -> GenerateRequest | str:
        """The request for a node, or the fault that prevents it."""
        if start is None:
            try:
                if self._blocks is None:
                    return self.closer.request(node, node._handle)
                return self._blocks.closed(node, lambda handle: self.closer.request(node, handle))
            except ContextOverflow as error:
                return str(error)
        task, suffix = self.task, None
        proposing = task.mode == "propose"
        if proposing:
            try:
                with calling_user_code("propose_prompt"):
                    suffix = task.propose_prompt(self.problem, path)
            except UserCodeError as raised:
                return Fault(raised)
            if fault := prompt_fault(suffix):
                return Fault(f"propose_prompt {fault}")
            suffix = plain_prompt(suffix)
        constraint = constraint_of(task, self.problem, path)
        if isinstance(constraint, Fault):
            return constraint
        early_exit = self.approximations.early_exit
        names = (*self.names, node.branch, *([f"round {round}"] if round else []))
        boundary = boundary_of(task)
        return GenerateRequest(
            handle=start.handle,
            streams=stream_keys(range(1) if proposing else start.branches, *names),
            sampling=sampling,
            max_tokens=most_tokens(task) * (k if proposing else 1),
            stop=tuple(task.propose_stop) if proposing else boundary.stop,
            keep_stop=boundary.keep_stop,
            skip_blank=boundary.skip_blank,
            rule=None if proposing else boundary.rule,
            suffix=suffix,
            states=not proposing and (self.states or self.approximations.sibling_merging is not None),
            rivals=None if proposing or early_exit is None else early_exit.rivals(node),
            constraint=constraint,
        )

    async def _replies(self, asked: Sequence[tuple[Node | None, Path, GenerateRequest]]) -> list[list[Reply] | Refusal]:
        """The replies to requests for the text of a thought after a node, None: of a closing; each with its thinking block."""
        call = partial(send, self.engine, self.account)
        if self._blocks is not None:
            replies = await self._blocks.generate([(node, request) for node, _, request in asked], call)
        else:
            replies = [
                found if isinstance(found, Refusal) else [(completion, NO_BLOCK) for completion in found]
                for found in await call([request for *_, request in asked])
            ]
        closings = {at: (path, request) for at, (node, path, request) in enumerate(asked) if node is None}
        await self.closer.read_on(replies, closings, call)
        return replies

    def _sampled(
        self, node: Node, path: Path, start: Start, reply: Sequence[Reply], round: int, constrained: bool
    ) -> Iterator[CandidateThought]:
        self.account.ledger.rival_stop.acted += any(completion.finish == "rival" for completion, _ in reply)
        for made, block in reply:
            finish = made.finish
            if finish == "rival" or (finish == "budget" and not made.tokens):  # stopped by a rival, or never started
                self.engine.release(made.handle)
                continue
            fault = block.fault or self._cut_off(finish, constrained)
            branch = _branch(start.branches[made.branches[0]], round)
            yield CandidateThought(
                node, path, made.text, branch, len(made.branches), made.tokens, made.logprobs, made.constrained_logprobs,
                FINISH[finish], made.handle, self._ending, start.exact and made.exact, self._withheld(finish),
                fault=fault, block=block, around=Around(made.lead, made.ending),
            )  # fmt: skip

    def _closed(self, node: Node, path: Path, reply: Sequence[Reply]) -> Iterator[CandidateThought]:
        """The reply to a closing. A reply that the budget cut off is dropped, unless it is that of the last closing."""
        [(completion, _)] = reply
        if completion.finish == "budget" and not (completion.tokens and self.account.spends_reserve):
            self.engine.release(completion.handle)
            return
        self.account.ledger.closings += 1
        fault = None if completion.text.strip() else NO_REPLY
        yield CandidateThought(
            node, path, completion.text, BRANCH, 1, completion.tokens, completion.logprobs,
            finish=FINISH[completion.finish], handle=completion.handle, exact=completion.exact,
            closing=self.closer.text, fault=fault, around=Around(completion.lead, completion.ending),
        )  # fmt: skip

    def _proposed(
        self, node: Node, path: Path, k: int, reply: Sequence[Reply], round: int, constrained: bool
    ) -> Iterator[CandidateThought]:
        """The thoughts of one reply. If the reply was cut off, so was the last one, and all that are under a constraint."""
        task, [(completion, _)] = self.task, reply
        if completion.handle is not None:
            self.engine.release(completion.handle)
        if completion.finish == "budget" and not completion.text:  # never started
            return
        fault = self._cut_off(completion.finish, constrained)
        try:
            with calling_user_code("split"):
                found: Any = task.split(self.problem, path, completion.text)
                pieces = [] if isinstance(found, str) else [plain_str(piece) for piece in found]
            if isinstance(found, str):
                fault = Fault(f"split returned {shown(found)}, not a list of thoughts")
        except UserCodeError as raised:
            pieces, fault = [], Fault(raised)
        if not pieces:
            ended = completion.finish == "eos" and not completion.text.strip()
            nothing = ENDED if ended else "the reply has no thought"
            yield CandidateThought(node, path, completion.text, "0", fault=fault or nothing)
        for at, piece in enumerate(pieces[:k]):
            last = at == len(pieces) - 1
            finish: ThoughtFinish = "length" if last and FINISH[completion.finish] == "length" else "stop"
            yield CandidateThought(
                node, path, piece, _branch(at, round), finish=finish,
                ending=self._ending, exact=completion.exact, cut=last and self._withheld(completion.finish),
                fault=fault if last or constrained else None,
            )  # fmt: skip

    def _withheld(self, finish: Finish) -> bool:
        return finish == "budget" and self.closer.on

    def _cut_off(self, finish: Finish, constrained: bool) -> str | None:
        """Why a truncated thought is rejected; None if it is not truncated, accepted by the task, or can be closed.

        A truncated thought does not have the form of its constraint, so it is always rejected.
        """
        if finish not in ("length", "budget", "stuck"):
            return None
        if not constrained and (accepts_truncated(self.task) or self.closer.on):
            return None
        if finish == "budget":
            return CUT_BY_BUDGET
        if finish == "stuck":
            return STUCK
        if constrained:
            most = self.task.max_thought_tokens
            return (
                f"cut off at max_thought_tokens {most} before it satisfied its constraint - raise it, or ask for less"
            )
        setting = "stop" if self.task.thoughts is None else "thoughts"
        return f"cut off at max_thought_tokens {self.task.max_thought_tokens} - raise it, or correct {setting}"

    @property
    def _ending(self) -> str:
        return boundary_of(self.task).ending


def _text(fault: Refusal | str) -> str:
    return fault if isinstance(fault, str) else str(fault)


def _branch(number: int, round: int) -> str:
    return f"{number}r{round}" if round else str(number)
