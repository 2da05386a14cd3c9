"""Thinking blocks: each thought is generated in rounds, inside its block and then after it.

One engine call makes a round of all branches of all nodes. Most branches need two rounds: the block, up to its closing marker or
its budget, and the text after it. Markers that a model writes in odd places need further rounds or end up in the thinking; see
:func:`split_reply`. Each round of a branch draws from a random stream of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rksc_tot.core.errors import ConfigError, ContextOverflow
from rksc_tot.core.ledger import Ledger
from rksc_tot.core.seeds import stream_key
from rksc_tot.core.task import Thinking
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import AppendedText, Completion, Engine, GenerateRequest, ThinkingEngine, ThinkingFormat
from rksc_tot.search.thoughts.replies import Refusal, Send
from rksc_tot.search.thoughts.thinking_block import BlockEnd, OpenBlock, Reply, ThinkingBlock, split_reply

T = TypeVar("T")


def continued(engine: Engine, handle: Any, prefix: Sequence[int], text: str) -> Any:
    """A handle for a path continued by tokens and then by a text. Raises ContextOverflow."""
    if not prefix or not isinstance(engine, ThinkingEngine):
        return engine.extend(handle, text)
    between = engine.append(handle, prefix)
    try:
        return engine.extend(between, text)
    finally:
        engine.release(between)


def thinking_engine(engine: Engine) -> ThinkingEngine:
    """The engine, if it knows thinking blocks.

    Raises
    ------
    ConfigError
        If it does not.
    """
    if isinstance(engine, ThinkingEngine):
        return engine
    raise ConfigError(f"{engine.name} knows no thinking blocks", hint="set Task.thinking to None")


@dataclass(slots=True)
class Draft:
    """Branches that have written the same so far.

    * ``start``: number of the request. ``branches``: their numbers in it. ``rounds``: engine calls so far.
    * ``handle``: the path so far. ``path``: its tokens after the request's handle. ``raw``: the text of these tokens.
    * ``inside``: whether the block is open. ``steps``: whether a stop string ends a thought inside it. ``left``: rest of its
      budget. ``room``: rest of the token limit after it.
    * ``tokens``, ``logprobs``: sampled inside. ``thinking``: text of the block. ``forced``: whether the search closed it.
    * ``blockless``: whether the thought has no block at all. ``intact``: whether nothing odd was written after the block.
    """

    start: int
    branches: tuple[int, ...]
    handle: Any
    room: int
    inside: bool = False
    steps: bool = False
    left: int = 0
    blockless: bool = True
    rounds: int = 0
    path: tuple[int, ...] = ()
    raw: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    thinking: str = ""
    forced: bool = False
    intact: bool = True
    exact: bool = True


@dataclass(frozen=True)
class ThinkingBlocks:
    """Generates thoughts with thinking blocks.

    Parameters
    ----------
    setting, max_thoughts
        Of the task.
    format : ThinkingFormat
        How blocks are written after the prompt.
    engine, ledger
        Of the search.
    ending : str
        What stands between two thoughts on a path.
    """

    setting: Thinking
    max_thoughts: int
    format: ThinkingFormat
    engine: ThinkingEngine
    ledger: Ledger
    ending: str

    def closed(self, node: Node, use: Callable[[Any], T]) -> T:
        """What ``use`` returns for the path of a node on which the thinking block is closed. Raises ContextOverflow."""
        if node._open_block is None:
            return use(node._handle)
        handle = self.engine.append(node._handle, self.format.closing.tokens)
        self.ledger.book_thinking(0, 1)
        try:
            return use(handle)
        finally:
            self.engine.release(handle)

    async def generate(
        self, asked: Sequence[tuple[Node | None, GenerateRequest]], send: Send
    ) -> list[list[Reply] | Refusal]:
        """The replies to each request, which is one for the text of a thought after the node; None: without a block.

        ``send`` makes one engine call. A ContextOverflow stands for a request whose block does not even begin.
        """
        rounds = BlockRounds(self, asked)
        try:
            drafts = [draft for start in range(len(asked)) for draft in rounds.begin(start)]
            while drafts:
                replies = await send([rounds.request(draft) for draft in drafts])
                pairs = zip(drafts, replies, strict=True)
                drafts = [heir for draft, reply in pairs for heir in rounds.advance(draft, reply)]
            return rounds.hand_over()
        finally:
            rounds.release()


class BlockRounds:
    """The rounds of one :meth:`ThinkingBlocks.generate`."""

    def __init__(self, blocks: ThinkingBlocks, asked: Sequence[tuple[Node | None, GenerateRequest]]) -> None:
        self._blocks, self._asked = blocks, asked
        self._format, self._engine = blocks.format, blocks.engine
        self._held: list[Any] = []
        self._done: list[list[Reply]] = [[] for _ in asked]
        self._overflows: dict[int, ContextOverflow] = {}

    # -- rounds ------------------------------------------------------------------------------------------------------

    def begin(self, start: int) -> list[Draft]:
        """The branches of a request before their first round; none if there is no room for a block."""
        node, request = self._asked[start]
        setting, known = self._blocks.setting, None if node is None else node._open_block
        draft = Draft(start, tuple(range(len(request.streams))), request.handle, room=request.max_tokens)
        if node is None or (setting.thought == "inside" and node.parent is not None and known is None):
            return [draft]
        draft.inside, draft.blockless = True, False
        draft.steps = setting.thought == "inside" and node.depth + 1 < self._blocks.max_thoughts
        draft.left = setting.budget if known is None else known.left
        try:
            if known is None:
                self._append(draft, self._format.opening if node.parent is None else self._format.reopening)
            if draft.left <= 0:
                self._close(draft)
        except ContextOverflow as error:
            self._overflows[start] = error
            return []
        return [draft]

    def request(self, draft: Draft) -> GenerateRequest:
        """The engine call of the next round."""
        request = self._asked[draft.start][1]
        keys = [request.streams[branch] for branch in draft.branches]
        if draft.rounds:
            keys = [stream_key(key, "thinking", draft.rounds) for key in keys]
        request = replace(request, handle=draft.handle, streams=tuple(keys), max_tokens=max(draft.room, 1), rivals=None)
        if not draft.inside:
            return request
        request = replace(request, constraint=None)
        if draft.steps:
            most = min(draft.left, request.max_tokens)
            return replace(request, max_tokens=most, rule=BlockEnd(self._format.closer, request.rule))
        return replace(
            request, max_tokens=draft.left, stop=(), keep_stop=False, skip_blank=False,
            rule=BlockEnd(self._format.closer), states=False,
        )  # fmt: skip

    def advance(self, draft: Draft, reply: list[Completion] | Refusal) -> list[Draft]:
        """Use the reply of a round. Returns the branches that go on."""
        if isinstance(reply, Refusal):
            self._fail(draft, reply)
            return []
        self._held += [completion.handle for completion in reply]
        heirs = []
        for completion in reply:
            branches = tuple(draft.branches[branch] for branch in completion.branches)
            heir = replace(
                draft, branches=branches, handle=completion.handle, rounds=draft.rounds + 1,
                exact=draft.exact and completion.exact,
            )  # fmt: skip
            try:
                goes_on = self._think(heir, completion) if draft.inside else self._write(heir, completion)
            except ContextOverflow as error:
                self._fail(heir, error)
            else:
                heirs += [heir] if goes_on else []
        return heirs

    def _think(self, draft: Draft, completion: Completion) -> bool:
        """Use a text from inside the block. Returns whether the draft goes on."""
        text, tokens = completion.text, completion.tokens
        draft.left -= len(tokens)
        draft.path += tokens
        draft.tokens += tokens
        draft.logprobs += completion.logprobs
        draft.raw += text
        self._blocks.ledger.book_thinking(len(tokens) * len(draft.branches), 0)
        closed = completion.finish == "stop" and text.endswith(self._format.closer)
        draft.thinking += text.removesuffix(self._format.closer) if closed else text
        if completion.finish == "budget":
            self._add(draft, completion._replace(text="", handle=draft.handle), self._block(draft))
            return False
        if (
            draft.steps
            and not closed
            and (completion.finish == "stop" or (completion.finish == "length" and draft.left > 0))
        ):
            self._add(draft, completion, self._step(draft, completion))
            return False
        if closed:
            self._append(draft, self._format.reply)
            draft.inside = False
        else:
            self._close(draft)
        return True

    def _write(self, draft: Draft, completion: Completion) -> bool:
        """Use a text from after the block. Returns whether the draft goes on."""
        if self._asked[draft.start][1].constraint is not None:  # its text has no markers but those that it asks for
            self._finish(draft, completion, completion.text)
            return False
        found = split_reply(completion.text, self._format)
        draft.intact = draft.intact and found.text == completion.text
        draft.room -= len(completion.tokens)
        draft.thinking += found.thinking
        if completion.finish == "stop" and not found.text.strip() and found.text != completion.text and draft.room > 0:
            draft.path += completion.tokens  # nothing but thinking so far
            draft.raw += completion.text
            draft.inside = found.reopened
            if draft.inside and draft.left <= 0:
                self._close(draft)
            return True
        self._finish(draft, completion, found.text)
        return False

    # -- results -----------------------------------------------------------------------------------------------------

    def _finish(self, draft: Draft, completion: Completion, text: str) -> None:
        """Make the reply of a draft whose text has ended."""
        block, setting = self._block(draft), self._blocks.setting
        before = self._asked[draft.start][1].handle if block.before is None else block.before
        handle, tokens, logprobs = completion.handle, completion.tokens, completion.logprobs
        if not draft.intact:
            ending = self._blocks.ending if completion.finish in ("stop", "eos") else ""
            handle, tokens, logprobs = self._hold(continued(self._engine, before, block.prefix, text + ending)), (), ()
            completion = completion._replace(ending=ending, lead="")
        elif not (setting.keep or draft.blockless):
            handle = self._hold(self._engine.append(before, (*block.prefix, *tokens)))
        if setting.thought == "whole":
            text, block = draft.raw + text, replace(block, prefix=())
            if draft.intact:
                tokens, logprobs = draft.tokens + tokens, draft.logprobs + logprobs
                completion = completion._replace(constrained_logprobs=())  # the block is under no constraint
        self._add(draft, completion._replace(text=text, tokens=tokens, logprobs=logprobs, handle=handle), block)

    def _block(self, draft: Draft) -> ThinkingBlock:
        """The block of a thought after which it is closed, as the path of the thought has it."""
        node, _ = self._asked[draft.start]
        block = ThinkingBlock(draft.thinking, len(draft.tokens), draft.forced)
        if node is None or draft.blockless:
            return block
        if self._blocks.setting.keep:
            return replace(block, prefix=draft.path)
        known = node._open_block
        header = self._format.header.tokens if node.parent is None or known is not None else ()
        return replace(block, before=None if known is None else known.before, prefix=header)

    def _step(self, draft: Draft, completion: Completion) -> ThinkingBlock:
        """The block after a thought inside it."""
        node, request = self._asked[draft.start]
        known = None if node is None else node._open_block
        prefix = draft.path[: len(draft.path) - len(completion.tokens)]
        still_open = OpenBlock(draft.left, request.handle if known is None else known.before)
        return ThinkingBlock(draft.thinking, len(draft.tokens), prefix=prefix, still_open=still_open)

    def _fail(self, draft: Draft, error: Refusal) -> None:
        """Reject a draft that the context has no room for, or whose constraint the engine refuses."""
        block = ThinkingBlock(draft.thinking, len(draft.tokens), draft.forced, fault=str(error))
        self._add(draft, Completion("", (), (), "length", (), None), block)

    def _add(self, draft: Draft, completion: Completion, block: ThinkingBlock) -> None:
        self._done[draft.start].append((completion._replace(branches=draft.branches, exact=draft.exact), block))

    def hand_over(self) -> list[list[Reply] | Refusal]:
        """All replies, ordered by their first branch. The caller owns their handles."""
        given = {id(completion.handle) for replies in self._done for completion, _ in replies}
        self._held, held = [], self._held
        for handle in held:
            if id(handle) not in given:
                self._engine.release(handle)
        ordered = (sorted(replies, key=lambda reply: reply[0].branches[0]) for replies in self._done)
        return [self._overflows.get(start, replies) for start, replies in enumerate(ordered)]

    # -- paths -------------------------------------------------------------------------------------------------------

    def _append(self, draft: Draft, text: AppendedText) -> None:
        """Append a text that the model has not written."""
        if text.tokens:
            draft.handle = self._hold(self._engine.append(draft.handle, text.tokens))
            draft.path += text.tokens
            draft.raw += text.text

    def _close(self, draft: Draft) -> None:
        """Close the block by force."""
        self._append(draft, self._format.closing)
        draft.inside, draft.forced = False, True
        self._blocks.ledger.book_thinking(0, len(draft.branches))

    def _hold(self, handle: Any) -> Any:
        self._held.append(handle)
        return handle

    def release(self) -> None:
        """Release all handles that were not handed over."""
        while self._held:
            self._engine.release(self._held.pop())
