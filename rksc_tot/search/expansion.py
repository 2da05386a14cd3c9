"""From nodes to drafts: the engine call behind ``Search.expand``, in both modes of generation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rksc_tot.core.errors import ContextOverflow
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, shown
from rksc_tot.core.seeds import stream_keys
from rksc_tot.core.task import Path, Task, ThoughtFinish
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import Account, Completion, Engine, Finish, GenerateRequest, Sampling
from rksc_tot.search.approximate.active import Approximations
from rksc_tot.search.approximate.prompt_variants import Start
from rksc_tot.search.task_calls import ENDED
from rksc_tot.search.validation import Fault, prompt_fault

CUT_BY_BUDGET = "cut off by the budget - raise it"
FINISH: dict[Finish, ThoughtFinish] = {"stop": "stop", "eos": "eos", "length": "length", "budget": "length"}


@dataclass(frozen=True, slots=True)
class CandidateThought:
    """A text on its way to become a node.

    * ``branch``: last part of the node's branch name. ``count``: how many branches wrote it.
    * ``finish``: what ended it.
    * ``handle``: of the engine, None for a proposed thought.
    * ``ending``: what closes the thought on the path, where its text has to be tokenised anew.
    * ``exact``: whether it started from KV of its own tokens.
    * ``fault``: why it cannot become a node.
    """

    parent: Node
    path: Path
    text: str
    branch: str
    count: int = 1
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish: ThoughtFinish = "stop"
    handle: Any = None
    ending: str = ""
    exact: bool = True
    fault: str | None = None


def sampling_of(usual: Task | Sampling, given: Mapping[str, Any]) -> Sampling:
    """How tokens are drawn: as is usual, but for the fields that are given.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """
    return Sampling(**{**{name: getattr(usual, name) for name in Sampling.model_fields}, **given})


@dataclass(frozen=True)
class ThoughtGenerator:
    """Writes drafts for a task with an engine.

    Parameters
    ----------
    task, problem, engine, account
        Of the search.
    sampling : Sampling
        How tokens are drawn where a strategy asks for no other temperature.
    names : tuple
        Seed and problem, which every random stream is named by.
    approximations : Approximations
        Where the first thoughts start from besides the prompt, whether thoughts are compared by their hidden states, and
        when branches may stop because another one is decisive.
    """

    task: Task
    problem: Any
    engine: Engine
    account: Account
    sampling: Sampling
    names: tuple[object, ...]
    approximations: Approximations

    async def draft(
        self, wanted: Sequence[tuple[Node, Path, int]], *, temperature: float | None, round: int
    ) -> tuple[list[CandidateThought], bool]:
        """All drafts for (node, its path, how many), in order, and whether a budget cut any of them short.

        Raises
        ------
        ContextOverflow
            If the root's prompt leaves no room for a thought; deeper nodes get a draft that says so.
        """
        sampling = self.sampling if temperature is None else sampling_of(self.sampling, {"temperature": temperature})
        spots = [(node, path, k, start) for node, path, k in wanted for start in await self._starts(node, k)]
        asked = [self._request(node, path, k, start, sampling, round) for node, path, k, start in spots]
        replies = iter(await self._replies([request for request in asked if isinstance(request, GenerateRequest)]))
        drafts: list[CandidateThought] = []
        cut = False
        for (node, path, k, start), request in zip(spots, asked, strict=True):
            reply = next(replies) if isinstance(request, GenerateRequest) else request
            if isinstance(reply, ContextOverflow) and node.parent is None:
                raise reply
            if isinstance(reply, ContextOverflow | str):
                drafts.append(
                    CandidateThought(node, path, "", "0", fault=reply if isinstance(reply, str) else str(reply))
                )
                continue
            cut = cut or any(completion.finish == "budget" for completion in reply)
            if self.task.mode == "propose":
                drafts += self._proposed(node, path, k, reply, round)
            else:
                drafts += self._sampled(node, path, start, reply, round)
        return drafts, cut

    async def _starts(self, node: Node, k: int) -> list[Start]:
        variants = self.approximations.prompt_variants
        if variants is None or node.parent is not None or self.task.mode == "propose":
            return [Start(node._handle, True, range(k))]
        return await variants.deal(node._handle, k)

    def _request(
        self, node: Node, path: Path, k: int, start: Start, sampling: Sampling, round: int
    ) -> GenerateRequest | str:
        """The request, or why the task has none for this node."""
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
        early_exit = self.approximations.early_exit
        names = (*self.names, node.branch, *([f"round {round}"] if round else []))
        return GenerateRequest(
            handle=start.handle,
            streams=stream_keys(range(1) if proposing else start.branches, *names),
            sampling=sampling,
            max_tokens=task.max_thought_tokens * (k if proposing else 1),
            stop=tuple(task.propose_stop if proposing else task.stop),
            keep_stop=task.keep_stop,
            skip_blank=task.skip_blank,
            suffix=suffix,
            states=self.approximations.sibling_merging is not None and not proposing,
            rivals=None if proposing or early_exit is None else early_exit.rivals(node),
        )

    async def _replies(self, requests: Sequence[GenerateRequest]) -> list[list[Completion] | ContextOverflow]:
        """All replies; where one request overflows the context, the others are asked again without it."""
        try:
            return [*await self.engine.generate(requests, self.account)]
        except ContextOverflow as error:
            if len(requests) == 1:
                return [error]
        return [(await self._replies([request]))[0] for request in requests]

    def _sampled(
        self, node: Node, path: Path, start: Start, reply: Sequence[Completion], round: int
    ) -> Iterator[CandidateThought]:
        self.account.ledger.rival_stop.acted += any(completion.finish == "rival" for completion in reply)
        for text, tokens, logprobs, finish, branches, handle, exact in reply:
            if finish == "rival" or (finish == "budget" and not tokens):  # given up, or never drawn
                self.engine.release(handle)
                continue
            fault = self._cut_off(finish)
            branch = _branch(start.branches[branches[0]], round)
            yield CandidateThought(
                node, path, text, branch, len(branches), tokens, logprobs, FINISH[finish], handle,
                ending=self._ending, exact=start.exact and exact, fault=fault,
            )  # fmt: skip

    def _proposed(
        self, node: Node, path: Path, k: int, reply: Sequence[Completion], round: int
    ) -> Iterator[CandidateThought]:
        """The pieces of one reply. Where the reply was cut off, its last piece was too."""
        task, [completion] = self.task, reply
        if completion.handle is not None:
            self.engine.release(completion.handle)
        if completion.finish == "budget" and not completion.text:  # never drawn
            return
        fault = self._cut_off(completion.finish)
        try:
            with calling_user_code("split"):
                found: Any = task.split(self.problem, path, completion.text)
                pieces = [] if isinstance(found, str) else [str(piece) for piece in found]
            if isinstance(found, str):
                fault = Fault(f"split returned {shown(found)}, not a list of thoughts")
        except UserCodeError as raised:
            pieces, fault = [], Fault(raised)
        if not pieces:
            ended = completion.finish == "eos" and not completion.text.strip()
            nothing = ENDED if ended else "the reply holds no thought"
            yield CandidateThought(node, path, completion.text, "0", fault=fault or nothing)
        for at, piece in enumerate(pieces[:k]):
            last = at == len(pieces) - 1
            finish: ThoughtFinish = "length" if last and FINISH[completion.finish] == "length" else "stop"
            yield CandidateThought(
                node, path, piece, _branch(at, round), finish=finish,
                ending=self._ending, exact=completion.exact, fault=fault if last else None,
            )  # fmt: skip

    def _cut_off(self, finish: Finish) -> str | None:
        """Why a truncated thought is rejected; None where it is not truncated, or the task accepts that."""
        if self.task.accept_truncated or finish not in ("length", "budget"):
            return None
        most = self.task.max_thought_tokens
        return (
            CUT_BY_BUDGET if finish == "budget" else f"cut off at max_thought_tokens {most} - raise it, or correct stop"
        )

    @property
    def _ending(self) -> str:
        return self.task.stop[0] if self.task.keep_stop and self.task.stop else ""


def _branch(number: int, round: int) -> str:
    return f"{number}r{round}" if round else str(number)
