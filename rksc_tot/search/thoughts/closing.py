"""Asks paths that end without an answer for it: ``Task.closing``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from rksc_tot.core.seeds import stream_keys
from rksc_tot.core.task import Path, Prompt, Task, Thought, ThoughtFinish
from rksc_tot.core.task.end_of_thought import accepts_truncated, boundary_of
from rksc_tot.core.task.task_settings import plain_prompt
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import Completion, Engine, GenerateRequest, Sampling
from rksc_tot.search.task_calls import AcceptedThought, Around, read_answer
from rksc_tot.search.thoughts.replies import Refusal, Send
from rksc_tot.search.thoughts.thinking_block import NO_BLOCK, Reply
from rksc_tot.search.validation import Fault

BRANCH = "closing"  # last part of the branch name of a closing thought
NO_REPLY = "the model wrote no answer after Task.closing"


class Closer:
    """Says which nodes are closed next, and makes the requests. Does nothing for a task without a closing.

    The path of a closed node gets the closing and the model's greedy reply as its last thought, which completes it. A reply that
    stops before it has an answer, such as at the end of the line ``:``, goes on.

    Parameters
    ----------
    task, problem, engine
        Of the search.
    names : tuple
        Seed and problem: the beginning of every random stream's name.

    Attributes
    ----------
    asked
        Ids of the nodes that were closed.
    """

    def __init__(self, task: Task, problem: Any, engine: Engine, names: tuple[object, ...]) -> None:
        self._task, self._problem, self._engine, self._names = task, problem, engine, names
        self._closing = None if task.closing is None else plain_prompt(task.closing)
        self._ended: set[int] = set()
        self.asked: set[int] = set()

    @property
    def on(self) -> bool:
        """Whether the task has a closing."""
        return self._closing is not None

    def judge(self, found: AcceptedThought, finish: ThoughtFinish) -> AcceptedThought:
        """Whether a path that ends here has its answer. If not, it is not finished but ``ended``."""
        cut_off = finish == "length" and not accepts_truncated(self._task)
        if self._closing is None or not (found.finished or cut_off):
            return found
        if found.finished and read_answer(self._task, self._problem, found.path)[0] is not None:
            return found
        return replace(found, finished=False, ended=True)

    def end(self, node: Node) -> None:
        """Note that a path has ended without an answer, so that its node is closed and gets no other children."""
        self._ended.add(node.id)

    def due(self, node: Node) -> bool:
        """Whether the next child of a node is its closing."""
        if self._closing is None or node.finished or node.id in self.asked:
            return False
        return node.id in self._ended or node.depth >= self._task.max_thoughts

    def grows(self, node: Node) -> bool:
        """Whether a node can get children."""
        open_end = not node.finished and node.depth < self._task.max_thoughts and node.id not in self._ended
        return open_end or self.due(node)

    def request(self, node: Node, handle: Any) -> GenerateRequest:
        """The request for the reply. Its handle, the path with the closing, is the caller's to release.

        ``handle``: the path of the node, whose thinking block is closed.

        Raises
        ------
        ContextOverflow
            If the context has no room for the closing.
        """
        task = self._task
        return GenerateRequest(
            handle=self._engine.extend(handle, self._closing or ""),
            streams=stream_keys(range(1), *self._names, node.branch, BRANCH),
            sampling=Sampling(temperature=0.0),
            max_tokens=task.closing_tokens,
            stop=tuple(task.closing_stop),
            keep_stop=boundary_of(task).keep_stop,
            skip_blank=True,
        )

    async def read_on(
        self, replies: list[list[Reply] | Refusal], asked: Mapping[int, tuple[Path, GenerateRequest]], send: Send
    ) -> None:
        """Let the replies to closings that stopped without an answer go on after their stop string.

        Each goes on until the task reads an answer, the model ends its text, or ``closing_tokens`` are used up.

        Parameters
        ----------
        replies
            Of one expansion. Those that go on are replaced. If the engine call ends with an exception, all are released.
        asked
            The path and the request of each closing, by its place in ``replies``.
        send
            Makes one engine call.
        """
        first = {at: replies[at] for at in asked}
        going = {at: reply[0][0] for at, reply in first.items() if not isinstance(reply, Refusal)}
        try:
            while going := {at: reply for at, reply in going.items() if self._goes_on(asked[at][0], reply)}:
                more = await send([self._next_request(asked[at][1], reply) for at, reply in going.items()])
                for (at, reply), found in zip([*going.items()], more, strict=True):
                    if isinstance(found, Refusal):  # no room in the context: the reply stays as it is
                        del going[at]
                        continue
                    self._engine.release(reply.handle)
                    going[at] = self._joined(reply, found[0])
                    replies[at] = [(going[at], NO_BLOCK)]
        except BaseException:
            for completion, _ in chain.from_iterable(reply for reply in replies if not isinstance(reply, Refusal)):
                self._engine.release(completion.handle)
            raise

    def closed(self, path: Path, text: str, finish: ThoughtFinish, around: Around | None) -> Path:
        """The path with a reply as its last thought."""
        lead, ending = around or ("", "")
        return Path((*path, Thought(text, path.state, finish, self.text, ending=ending, lead=lead)))

    def _goes_on(self, path: Path, reply: Completion) -> bool:
        if reply.finish != "stop" or len(reply.tokens) >= self._task.closing_tokens:
            return False
        closed = self.closed(path, reply.text, "stop", Around(reply.lead, reply.ending))
        answer, reason = read_answer(self._task, self._problem, closed)
        return answer is None and not isinstance(reason, Fault)

    def _next_request(self, first: GenerateRequest, reply: Completion) -> GenerateRequest:
        return replace(first, handle=reply.handle, max_tokens=self._task.closing_tokens - len(reply.tokens))

    def _joined(self, reply: Completion, more: Completion) -> Completion:
        between = reply.ending + more.lead
        return more._replace(
            text=reply.text + between + more.text if more.text else reply.text,
            lead=reply.lead,
            ending=more.ending if more.text else between + more.ending,
            tokens=reply.tokens + more.tokens,
            logprobs=reply.logprobs + more.logprobs,
            exact=reply.exact and more.exact,
        )

    @property
    def text(self) -> str | None:
        """The closing as text, as on :class:`~rksc_tot.core.task.Thought`; None without one."""
        return closing_text(self._closing)


def closing_text(closing: Prompt | None) -> str | None:
    """A closing as text: chat messages are their contents, one on each line."""
    if closing is None or isinstance(closing, str):
        return closing
    return "".join(f"{message['content']}\n" for message in closing)
