"""The models that a judge asks: the model of the search, another engine, or a function such as a call of a service."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rksc_tot.core.errors import ContextOverflow, RkscTotError
from rksc_tot.core.ledger import Ledger
from rksc_tot.core.plugins.bounded_call import BoundedCall
from rksc_tot.core.plugins.user_code import UserCodeError, plain_str, shown
from rksc_tot.core.task import Prompt
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import Account, Completion, Engine, GenerateRequest, LabelRequest
from rksc_tot.search import Search
from rksc_tot.search.scoring import GREEDY
from rksc_tot.verifiers.base import ask_labels
from rksc_tot.verifiers.language_model.asking import asked, write_replies

LEAD = "Verdict: "
"""What another engine continues where label probabilities are read."""


class JudgeQuestion(NamedTuple):
    """A question to a judge.

    * ``node``: the node after which the search's model is asked.
    * ``text``: the question after its path. ``whole``: problem, path and question, for another model.
    * ``labels``: the labels that may be read instead of a reply.
    """

    node: Node
    text: str
    whole: str
    labels: tuple[str, ...]


class JudgeAnswer(NamedTuple):
    """What a judge said: label probabilities, or a reply in words. ``exact``: whether it was read from full KV."""

    shares: Mapping[str, float] | None = None
    reply: str = ""
    exact: bool = True


Answer = JudgeAnswer | str | None
"""An answer; why there is none; or None if the time or the tokens ran out."""


class ReplyCache:
    """The last answers by the text of the question; thread-safe. ``size``: most entries."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, JudgeAnswer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, text: str) -> JudgeAnswer | None:
        """The answer to a text, None if it is not kept."""
        with self._lock:
            if text in self._kept:
                self._kept.move_to_end(text)
            return self._kept.get(text)

    def put(self, text: str, answer: JudgeAnswer) -> None:
        """Keep an answer; the one that was not used for the longest time is dropped."""
        with self._lock:
            self._kept[text] = answer
            self._kept.move_to_end(text)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)


@dataclass(frozen=True)
class OwnModel:
    """The model of the search, asked after the KV of the nodes.

    * ``max_tokens``: most tokens of a reply. ``replies``: whether replies are written; else label probabilities are read.
    """

    max_tokens: int
    replies: bool

    async def answers(self, search: Search, questions: Sequence[JudgeQuestion]) -> list[Answer]:
        """An answer to each question."""
        texts = [asked(search, question.text) for question in questions]
        nodes = [question.node for question in questions]
        if self.replies:
            written = await write_replies(search, nodes, texts, self.max_tokens)
            return [
                JudgeAnswer(reply=reply.text, exact=reply.exact) if isinstance(reply, Completion) else _why(reply)
                for reply in written
            ]
        requests = [
            LabelRequest(question.node._handle, text, question.labels)
            for question, text in zip(questions, texts, strict=True)
        ]
        return [
            _why(scores)
            if scores is None or isinstance(scores, ContextOverflow)
            else JudgeAnswer(scores.probabilities, exact=scores.exact)
            for scores in await ask_labels(search, requests)
        ]


@dataclass(frozen=True)
class RemoteModel:
    """A model that sees the whole text of a question. Equal texts are asked once and kept.

    * ``cache``: the answers so far. ``concurrency``: most questions at a time.
    """

    cache: ReplyCache
    concurrency: int

    async def answers(self, search: Search, questions: Sequence[JudgeQuestion]) -> list[Answer]:
        """An answer to each question."""
        found: dict[str, Answer] = {}
        for question in questions:
            found[question.whole] = self.cache.get(question.whole)
        new = list({question.whole: question for question in questions if found[question.whole] is None}.values())
        for question, answer in zip(new, await self.ask(search, new), strict=True):
            found[question.whole] = answer
            if isinstance(answer, JudgeAnswer):
                self.cache.put(question.whole, answer)
        return [found[question.whole] for question in questions]

    async def ask(self, search: Search, questions: Sequence[JudgeQuestion]) -> list[Answer]:
        """Ask questions that are not in the cache."""
        raise NotImplementedError


@dataclass(frozen=True)
class OtherEngine(RemoteModel):
    """A model on another engine. Its work counts as verifier tokens, its replies as sampled tokens of the search.

    * ``engine``: the engine. ``form``: makes the prompt of a text. ``max_tokens``, ``replies``: as of :class:`OwnModel`.
    """

    engine: Engine
    form: Callable[[str], Prompt]
    max_tokens: int
    replies: bool

    async def ask(self, search: Search, questions: Sequence[JudgeQuestion]) -> list[Answer]:
        """Ask ``concurrency`` questions at a time."""
        answers: list[Answer] = []
        for start in range(0, len(questions), self.concurrency):
            some = questions[start : start + self.concurrency]
            answers += [None] * len(some) if search.limits.late() else await self._ask(search, some)
        return answers

    async def _ask(self, search: Search, questions: Sequence[JudgeQuestion]) -> list[Answer]:
        account = Account(Ledger(), deadline=search.account.deadline, run=search.account)
        opened: list[tuple[Any, JudgeQuestion]] = []
        answers: list[Answer] = [None] * len(questions)
        try:
            for at, question in enumerate(questions):
                try:
                    opened.append((self.engine.open(self.form(question.whole), account), question))
                except RkscTotError as error:
                    answers[at] = str(error)
            replies = iter(await self._read(opened, account) if opened else [])
            return [next(replies) if answer is None else answer for answer in answers]
        finally:
            for handle, _ in opened:
                self.engine.release(handle)
            work = account.ledger
            search.ledger.book_question(work.prefill_tokens + work.verifier_tokens)

    async def _read(self, opened: Sequence[tuple[Any, JudgeQuestion]], account: Account) -> list[Answer]:
        if not self.replies:
            requests = [LabelRequest(handle, LEAD, question.labels) for handle, question in opened]
            found = await self.engine.label(requests, account)
            return [None if scores is None else JudgeAnswer(scores.probabilities) for scores in found]
        wanted = [GenerateRequest(handle, (0,), GREEDY, self.max_tokens) for handle, _ in opened]
        answers: list[Answer] = []
        for [reply] in await self.engine.generate(wanted, account):
            answers.append(None if reply.finish == "budget" else JudgeAnswer(reply=reply.text))
            self.engine.release(reply.handle)
        return answers


@dataclass(frozen=True)
class AskFunction(RemoteModel):
    """A plain or async function from a text to a reply, such as a call of a service.

    * ``function``: the function. ``timeout``: seconds for a call.
    """

    function: Callable[[str], Any]
    timeout: float

    async def ask(self, search: Search, questions: Sequence[JudgeQuestion]) -> list[Answer]:
        """Ask ``concurrency`` questions at a time."""
        gate = asyncio.Semaphore(self.concurrency)

        async def ask(question: JudgeQuestion) -> Answer:
            async with gate:
                return await self._call(search, question.whole)

        return list(await asyncio.gather(*map(ask, questions)))

    async def _call(self, search: Search, text: str) -> Answer:
        call = BoundedCall("it", self.timeout, 1, lambda: search.limits.seconds_left)
        try:
            reply, _ = await call(self.function, lambda: (text,))
        except TimeoutError:
            return None if call.late else f"no reply within {self.timeout:g} s"
        except UserCodeError as raised:
            return str(raised)
        return (
            JudgeAnswer(reply=plain_str(reply))
            if isinstance(reply, str)
            else f"the reply is {shown(reply)}, not a text"
        )


def _why(found: ContextOverflow | None) -> str | None:
    return None if found is None else str(found)
