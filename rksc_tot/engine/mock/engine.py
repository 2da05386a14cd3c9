"""An engine without a model, for tests, demonstrations and the study of strategies.

A Python function writes the thoughts, and a token is a character. Stop strings, limits, private random streams, handles and the
ledger work as in the real engine.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from rksc_tot.core.errors import ConstraintError, ContextOverflow, EngineError
from rksc_tot.core.ledger import Ledger
from rksc_tot.core.task import Markers, Prompt
from rksc_tot.engine.base import (
    CLOSED,
    Account,
    Completion,
    Finish,
    GenerateRequest,
    LabelRequest,
    LabelScores,
    PromptReuseVerdict,
    ThinkingFormat,
    Usage,
    check_handle,
    check_layers,
    check_prompt_kv,
)
from rksc_tot.engine.mock.cut import NOTHING, Texts, cut
from rksc_tot.engine.mock.kv import MockHandle, MockKV
from rksc_tot.engine.mock.model import Labeller, LogitLens, MockModel, Writer, label_trie, render, thinking_format
from rksc_tot.policies.early_exit.cgee import Reading


class MockEngine:
    """An engine with functions in place of a model.

    Parameters
    ----------
    writer : callable
        ``writer(text_so_far, rng)`` returns what one branch writes next, or a pair of that and the log-probability (nats,
        ≤ 0) of each of its characters. The text is cut at stop strings and at the token limit. At temperature 0 every branch
        gets the same ``rng``.
    labeller : callable, optional
        ``labeller(text_so_far, question, labels)`` returns the probability of each label; the rest up to 1 is the
        probability of anything else. By default all labels are equally likely.
    context : int, optional
        Longest path in characters.
    layers : int
        Decoder layers that the engine claims to have; 0: label requests cannot exit early or be traced.
    lens : callable, optional
        ``lens(text_so_far, question, labels, layer)`` returns what the labeller would return after a layer before the last
        one. By default every layer agrees with the last one.
    alike : callable, optional
        ``alike(text, other)`` returns the σ of two paths, or None (the default) if there is nothing to compare.

    Attributes
    ----------
    handles
        Open handles.
    """

    name = "mock"

    def __init__(
        self,
        writer: Writer,
        labeller: Labeller | None = None,
        context: int | None = None,
        layers: int = 0,
        lens: LogitLens | None = None,
        alike: Callable[[str, str], float | None] = lambda text, other: None,
    ) -> None:
        self._model = MockModel(writer, labeller, lens)
        self._context = context
        self._alike = alike
        self.layers = layers
        self._kept: dict[int, MockKV] = {}  # by id of the account, while the account has handles
        self._closed = False
        self._passes = 0
        self._rows = 0

    @property
    def numerics(self) -> Mapping[str, Any]:
        """The kind of engine; results depend on nothing but the functions and the seed."""
        return {"engine": "mock"}

    @property
    def handles(self) -> int:
        """Open handles."""
        return sum(len(kept.handles) for kept in self._kept.values())

    @property
    def usage(self) -> Usage:
        """Totals of this engine; a character takes a byte."""
        return Usage(self._passes, self._rows, None, self._kv_bytes, None, 0)

    def open(self, prompt: Prompt, account: Account, thinking: ThinkingFormat | None = None) -> MockHandle:
        """A handle for a prompt."""
        self._check_open()
        text = render(prompt) if thinking is None else "".join(map(chr, thinking.prompt))
        self._check_room(len(text))
        check_prompt_kv(len(text), 1, account)
        return MockHandle(text, self._kept.setdefault(id(account), MockKV(account)))

    def thinking_format(self, prompt: Prompt, markers: Markers | None) -> ThinkingFormat:
        """How thinking blocks are written with the named markers; by default with ``<think>`` and ``</think>``."""
        return thinking_format(prompt, markers)

    def append(self, handle: MockHandle, tokens: Sequence[int]) -> MockHandle:
        """A handle for the path continued by tokens."""
        return self.extend(handle, "".join(map(chr, tokens)))

    def extend(self, handle: MockHandle, words: Prompt) -> MockHandle:
        """A handle for the path continued by a text or by chat messages."""
        text = self._own(handle).text + render(words)
        self._check_room(len(text))
        return MockHandle(text, handle.kept)

    async def generate(self, requests: Sequence[GenerateRequest], account: Account) -> list[list[Completion]]:
        """Completions of each request, ordered by their first branch."""
        self._check_open()
        for request in requests:
            self._check_room(self._own(request.handle).length + len(render(request.suffix or "")))
            if request.constraint is not None:
                raise ConstraintError(
                    "the mock engine writes no constrained thoughts", hint="use a transformers engine"
                )
        await asyncio.sleep(0)
        replies: list[list[Completion]] = []
        try:
            for request in requests:
                replies.append(self._continue(request, account))  # noqa: PERF401 - on error the handles made so far are released
        except EngineError:
            for completion in (completion for reply in replies for completion in reply if completion.handle):
                self.release(completion.handle)
            raise
        return replies

    async def label(self, requests: Sequence[LabelRequest], account: Account) -> list[LabelScores | None]:
        """Label probabilities of each request; None where the deadline came first."""
        self._check_open()
        check_layers(requests, self.name, self.layers, "the mock engine has layers=0")
        for request in requests:
            self._check_room(self._own(request.handle).length + len(render(request.question)))
            trie = label_trie(request)
            if request.exit is not None or request.trace:
                trie.check_layers()
        await asyncio.sleep(0)
        return [None if account.late else self._ask(request, account) for request in requests]

    def similarity(self, handle: MockHandle, others: Sequence[MockHandle], alpha: float) -> list[float | None]:
        """σ by the function ``alike``."""
        text = self._own(handle).text
        return [self._alike(text, self._own(other).text) for other in others]

    async def open_variant(
        self, prompt: Prompt, reference: MockHandle, rule: Any, account: Account, key: int
    ) -> tuple[MockHandle, PromptReuseVerdict]:
        """A handle for the prompt; there is no KV to reuse."""
        self._own(reference)
        await asyncio.sleep(0)
        return self.open(prompt, account), _NotKept()

    async def divergence(
        self, pairs: Sequence[tuple[MockHandle, MockHandle]], account: Account
    ) -> list[tuple[float, bool] | None]:
        """Whether the greedy writer continues both paths with the same character; the KL is 0 nats if so, else 1."""
        await asyncio.sleep(0)
        same = [
            len({self._model.write(self._own(one).text, random.Random(0))[0][:1] for one in pair}) == 1
            for pair in pairs
        ]
        return [None if account.late else (float(not alike), alike) for alike in same]

    def release(self, handle: MockHandle) -> None:
        """Release a handle. With the last handle of an account, all KV of the account is dropped."""
        self._own(handle).released = True
        kept = handle.kept
        kept.handles.discard(handle)
        if not kept.handles:
            del self._kept[id(kept.account)]

    def rate(self, handle: MockHandle, score: float, depth: int) -> None:
        """Do nothing: the mock engine evicts without ratings."""
        self._own(handle)

    def close(self) -> None:
        """Refuse all further calls."""
        self._closed = True

    # -- writing -----------------------------------------------------------------------------------------------------

    def _continue(self, request: GenerateRequest, account: Account) -> list[Completion]:
        scratch = render(request.suffix or "")
        context = request.handle.text + scratch
        visited = self._visit(request.handle, account)
        written: dict[tuple[Texts, Finish, float], list[int]] = {}
        sampled: set[str] = set()
        for branch, stream in enumerate(request.streams):
            if not visited or account.late or account.available <= 0:
                written.setdefault((NOTHING, "budget", 0.0), []).append(branch)
                continue
            rng = random.Random(stream if request.sampling.temperature else 0)
            raw, logprob = self._model.write_thought(context, rng, request)
            room = math.inf if self._context is None else self._context - len(context)
            tokens, texts, finish = cut(raw, context, request, account, sampled, room)
            sampled.add(context + tokens)
            if request.suffix is None:  # every sampled token but the last is fed to the model
                self._store(request.handle, context + tokens[:-1], account, sampled)
            written.setdefault((texts, finish, logprob), []).append(branch)
        fed = [len(text) - len(context) - 1 for text in sampled if text != context]
        self._count(max(fed, default=0), 0, account.ledger)
        if request.suffix is not None:
            book = account.ledger.book_question if request.verifying else account.ledger.book_reply
            book(len(scratch) + sum(fed))
        completions = []
        for (texts, finish, logprob), branches in written.items():
            kept = texts.kept
            handle = MockHandle(request.handle.text + kept, request.handle.kept) if request.suffix is None else None
            made = Completion(
                texts.text, tuple(map(ord, kept)), (logprob,) * len(kept), finish, tuple(branches), handle,
                lead=texts.lead, ending=texts.ending,
            )  # fmt: skip
            completions.append(made)
        return completions

    def _ask(self, request: LabelRequest, account: Account) -> LabelScores | None:
        if not self._visit(request.handle, account):
            return None
        ledger = account.ledger
        ledger.book_question(len(render(request.question)))
        self._count(1, len(render(request.question)), ledger)
        between_layers = request.trace or request.exit is not None
        asked = request.handle.text, request.question, request.labels
        seen: list[Reading] = []
        for layer in range(1, self.layers) if between_layers else ():
            if request.trace or (request.exit is not None and request.exit.checks(layer)):
                found, _ = self._model.read(*asked, layer)
                seen.append((layer, found))
                if not request.trace and request.exit is not None and request.exit.decided(seen):
                    ledger.book_answer(layer, self.layers)
                    return LabelScores(dict(zip(request.labels, found, strict=True)), None, layer)
        found, outside = self._model.read(*asked, None)
        ledger.book_answer(self.layers, self.layers)
        return LabelScores(
            dict(zip(request.labels, found, strict=True)),
            None if between_layers and not request.trace else outside,
            trace=(*(tuple(reading) for _, reading in seen), found) if request.trace else None,
        )

    # -- the account -------------------------------------------------------------------------------------------------

    @property
    def _kv_bytes(self) -> int:
        return sum(kept.held.size for kept in self._kept.values())

    def _visit(self, handle: MockHandle, account: Account) -> bool:
        """Make a path resident and book it; False if there is no room."""
        computed = self._store(handle, handle.text, account)
        if computed is None:
            account.kv_short = True
            return False
        account.ledger.book_visit(handle.length, computed)
        self._count(computed > 0, 0, account.ledger)
        return True

    def _store(self, handle: MockHandle, text: str, account: Account, needed: Collection[str] = ()) -> int | None:
        computed = handle.kept.store(text, account, needed)
        account.ledger.book_passes(0, self._kv_bytes)
        self._rows += computed or 0
        return computed

    def _count(self, passes: int, rows: int, ledger: Ledger) -> None:
        ledger.book_passes(passes, 0)
        self._passes += passes
        self._rows += rows

    # -- handles -----------------------------------------------------------------------------------------------------

    def _own(self, handle: MockHandle) -> MockHandle:
        self._check_open()
        check_handle(handle, isinstance(handle, MockHandle))
        return handle

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError(CLOSED, hint="make a new one")

    def _check_room(self, length: int) -> None:
        if self._context is not None and length >= self._context:
            raise ContextOverflow(
                f"{length} tokens leave no room in a context of {self._context}", hint="shorten the prompt or the path"
            )


class _NotKept:
    kept = False
    why = "a mock engine has no KV to reuse"
