"""An engine without a model, for tests, demonstrations and the study of strategies.

A Python function writes the thoughts; a token is a character. Everything else (stop strings, truncation, private random
streams, handles, the ledger) is as in a real engine.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rksc_tot.engine.base import (
    Account,
    Completion,
    Finish,
    GenerateRequest,
    LabelRequest,
    LabelScores,
    PhrasingVerdict,
)
from rksc_tot.errors import ContextOverflow, EngineError
from rksc_tot.guard import Raised, guarded
from rksc_tot.ledger import Ledger
from rksc_tot.policies.cgee import Reading
from rksc_tot.task import Prompt

Writer = Callable[[str, random.Random], str | tuple[str, float]]
Labeller = Callable[[str, Prompt, tuple[str, ...]], Mapping[str, float]]
Lens = Callable[[str, Prompt, tuple[str, ...], int], Mapping[str, float]]


class MockHandle:
    """A text; a character is a token."""

    __slots__ = ("released", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.released = False

    @property
    def length(self) -> int:
        """Characters from the start of the prompt."""
        return len(self.text)


class MockEngine:
    """Writes with a function in place of a model.

    Parameters
    ----------
    writer : callable
        ``writer(text_so_far, rng)`` returns what one branch writes next, or that and the log-probability (nats, ≤ 0) of
        each of its characters. It is cut at stop strings and at the token limit. At temperature 0 every branch gets the
        same ``rng``.
    labeller : callable, optional
        ``labeller(text_so_far, question, labels)`` returns the probability of each label; what is missing from 1 fell
        outside them. By default all labels are equally likely.
    context : int, optional
        Longest path in characters.
    layers : int
        How many decoder layers a label request seems to have.
    lens : callable, optional
        ``lens(text_so_far, question, labels, layer)`` returns what the labeller would if it were asked after a layer before
        the last one. By default every layer says what the last one says.
    alike : callable, optional
        ``alike(text, other)`` returns the σ of two paths; None, the default, where there is nothing to compare.
    """

    name = "mock"

    def __init__(
        self,
        writer: Writer,
        labeller: Labeller | None = None,
        context: int | None = None,
        layers: int = 0,
        lens: Lens | None = None,
        alike: Callable[[str, str], float | None] = lambda text, other: None,
    ) -> None:
        self._writer = writer
        self._labeller = labeller
        self._context = context
        self._lens = lens
        self._alike = alike
        self.layers = layers
        self._stored = _PrefixSet()
        self._closed = False
        self.handles = 0
        """Handles given out and not yet given back."""

    @property
    def numerics(self) -> Mapping[str, Any]:
        """Nothing a result could depend on."""
        return {"engine": "mock"}

    def open(self, prompt: Prompt, account: Account) -> MockHandle:
        """A handle for a prompt."""
        self._check_open()
        text = render(prompt)
        self._check_room(len(text))
        return self._handle(text)

    def extend(self, handle: MockHandle, text: str) -> MockHandle:
        """A handle for the path continued by ``text``."""
        text = self._own(handle).text + text
        self._check_room(len(text))
        return self._handle(text)

    async def generate(self, requests: Sequence[GenerateRequest], account: Account) -> list[list[Completion]]:
        """Completions of each request, ordered by their first branch."""
        self._check_open()
        for request in requests:
            self._check_room(self._own(request.handle).length + len(render(request.suffix or "")))
        await asyncio.sleep(0)
        replies: list[list[Completion]] = []
        try:
            for request in requests:
                replies.append(self._continue(request, account))  # noqa: PERF401 - those made are given back on error
        except EngineError:
            for completion in (completion for reply in replies for completion in reply if completion.handle):
                self.release(completion.handle)
            raise
        return replies

    async def label(self, requests: Sequence[LabelRequest], account: Account) -> list[LabelScores | None]:
        """Label probabilities of each request; None where the deadline came first."""
        self._check_open()
        for request in requests:
            self._check_room(self._own(request.handle).length + len(render(request.question)))
            if not self.layers and (request.trace or request.exit is not None):
                raise EngineError("this engine has no layers to look between", hint="make it with layers=8, say")
        await asyncio.sleep(0)
        return [None if _late(account) else self._ask(request, account.ledger) for request in requests]

    def similarity(self, handle: MockHandle, others: Sequence[MockHandle], alpha: float) -> list[float | None]:
        """What ``alike`` says."""
        text = self._own(handle).text
        return [self._alike(text, self._own(other).text) for other in others]

    async def open_phrasing(
        self, prompt: Prompt, reference: MockHandle, rule: Any, account: Account, key: int
    ) -> tuple[MockHandle, PhrasingVerdict]:
        """There is no KV to take over."""
        self._own(reference)
        await asyncio.sleep(0)
        return self.open(prompt, account), _NotKept()

    async def divergence(
        self, pairs: Sequence[tuple[MockHandle, MockHandle]], account: Account
    ) -> list[tuple[float, bool] | None]:
        """Whether the greedy writer goes on with the same character; the KL is 0 nats if so, else 1."""
        await asyncio.sleep(0)
        same = [len({self._write(self._own(one).text, random.Random(0))[0][:1] for one in pair}) == 1 for pair in pairs]
        return [None if _late(account) else (float(not alike), alike) for alike in same]

    def release(self, handle: MockHandle) -> None:
        """Give a handle back."""
        self._own(handle).released = True
        self.handles -= 1

    def rate(self, handle: MockHandle, score: float, depth: int) -> None:
        """Nothing is ever evicted here."""
        self._own(handle)

    def close(self) -> None:
        """Refuse all further calls."""
        self._closed = True

    # -- writing -----------------------------------------------------------------------------------------------------

    def _continue(self, request: GenerateRequest, account: Account) -> list[Completion]:
        scratch = render(request.suffix or "")
        context = request.handle.text + scratch
        self._visit(request.handle.text, account.ledger)
        written: dict[tuple[str, str, Finish, float], list[int]] = {}
        sampled: set[str] = set()
        for branch, stream in enumerate(request.streams):
            if _late(account) or account.tokens_left == 0:
                written.setdefault(("", "", "budget", 0.0), []).append(branch)
                continue
            raw, logprob = self._write(context, random.Random(stream if request.sampling.temperature else 0))
            tokens, text, kept, finish = self._cut(raw, len(context), request, account)
            sampled.add(tokens)
            written.setdefault((text, kept, finish, logprob), []).append(branch)
        self._decode(context, sampled, account.ledger, scratch=len(scratch) if request.suffix is not None else None)
        completions = []
        for (text, kept, finish, logprob), branches in written.items():
            handle = self._handle(request.handle.text + kept) if request.suffix is None else None
            tokens_kept = tuple(map(ord, kept))
            completions.append(Completion(text, tokens_kept, (logprob,) * len(kept), finish, tuple(branches), handle))
        return completions

    def _write(self, context: str, rng: random.Random) -> tuple[str, float]:
        """What the writer writes, and the log-probability of each of its characters."""
        try:
            with guarded("the writer"):
                draft = self._writer(context, rng)
                raw, logprob = (draft, -0.5) if isinstance(draft, str) else draft
                return raw + "", float(logprob)
        except Raised as raised:
            raise EngineError(str(raised), hint="return a string, or a string and a number") from raised.error

    def _cut(self, raw: str, used: int, request: GenerateRequest, account: Account) -> tuple[str, str, str, Finish]:
        """What was sampled, what of it is the text, what of it is kept, and why it ended."""
        room = math.inf if self._context is None else self._context - used
        longest = int(min(len(raw) + 1, request.max_tokens, room))
        ends = [(at, stop) for stop in request.stop if (at := raw.find(stop)) >= 0]
        text, stop = (raw, "") if not ends else (raw[: min(ends)[0]], min(ends)[1])
        wanted = len(text) + len(stop) if stop else len(text) + 1  # the end-of-sequence token is drawn, too
        late = _late(account)
        granted = 0 if late else account.take(min(wanted, longest))
        if granted == wanted:
            end = stop or (*request.stop, "")[0]  # an end-of-text is closed like any other thought
            kept = text + end if request.keep_stop else text
            return text + stop, text, kept, "stop" if stop else "eos"
        part = (text + stop)[:granted]
        return part, part, part, "length" if granted == longest and not late else "budget"

    def _ask(self, request: LabelRequest, ledger: Ledger) -> LabelScores:
        self._visit(request.handle.text, ledger)
        ledger.verifier_tokens += len(render(request.question))
        ledger.forward_passes += 1
        watched = request.trace or request.exit is not None
        seen: list[Reading] = []
        for layer in range(1, self.layers) if watched else ():
            if request.trace or (request.exit is not None and request.exit.checks(layer)):
                found, _ = self._read(request, layer)
                seen.append((layer, found))
                if not request.trace and request.exit is not None and request.exit.decided(seen):
                    self._book_layers(layer, ledger)
                    return LabelScores(dict(zip(request.labels, found, strict=True)), None, layer)
        found, outside = self._read(request, None)
        self._book_layers(self.layers, ledger)
        return LabelScores(
            dict(zip(request.labels, found, strict=True)),
            None if watched and not request.trace else outside,
            trace=(*(tuple(reading) for _, reading in seen), found) if request.trace else None,
        )

    def _read(self, request: LabelRequest, layer: int | None) -> tuple[tuple[float, ...], float]:
        """Label probabilities after a layer (None: the last), and the mass outside."""
        equal = (1 / len(request.labels),) * len(request.labels)
        asked = (request.handle.text, request.question, request.labels)
        if self._labeller is None:
            return equal, 0.0
        try:
            with guarded("the labeller"):
                given = self._labeller(*asked) if layer is None or self._lens is None else self._lens(*asked, layer)
                weights = [float(given.get(label, 0.0)) for label in request.labels]
        except Raised as raised:
            raise EngineError(str(raised), hint="return the probability of each label") from raised.error
        total = sum(weights)
        return (tuple(weight / total for weight in weights), max(0.0, 1 - total)) if total > 0 else (equal, 1.0)

    def _book_layers(self, layer: int, ledger: Ledger) -> None:
        ledger.verifier_layers += layer
        ledger.verifier_layers_full += self.layers
        ledger.layer_exit.acted += layer < self.layers

    # -- the account -------------------------------------------------------------------------------------------------

    def _visit(self, text: str, ledger: Ledger) -> None:
        """Book the path, and what of it has still to be computed."""
        computed = self._stored.add(text)
        ledger.context_tokens += len(text)
        ledger.context_computed += computed
        ledger.forward_passes += computed > 0
        self._book(computed, ledger)

    def _decode(self, context: str, sampled: set[str], ledger: Ledger, scratch: int | None) -> None:
        """Book the decode steps: every sampled token but the last of a branch was fed to the model."""
        rows = [text[:-1] for text in sorted(sampled)]
        ledger.forward_passes += max(map(len, rows), default=0)
        if scratch is None:
            self._book(sum(self._stored.add(context + text) for text in rows), ledger)
        else:
            ledger.proposal_tokens += scratch + sum(map(len, rows))

    def _book(self, rows: int, ledger: Ledger) -> None:
        ledger.prefill_tokens += rows
        ledger.distinct_tokens += rows  # nothing is ever evicted
        ledger.peak_kv_bytes = max(ledger.peak_kv_bytes, self._stored.size)

    # -- handles -----------------------------------------------------------------------------------------------------

    def _handle(self, text: str) -> MockHandle:
        self.handles += 1
        return MockHandle(text)

    def _own(self, handle: MockHandle) -> MockHandle:
        self._check_open()
        if not isinstance(handle, MockHandle):
            raise EngineError(f"{handle!r} is not a handle of this engine", hint="was its node pruned?")
        if handle.released:
            raise EngineError("the handle was released", hint="keep a handle until nothing grows from it")
        return handle

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed", hint="make a new one")

    def _check_room(self, length: int) -> None:
        if self._context is not None and length >= self._context:
            raise ContextOverflow(
                f"{length} tokens leave no room in a context of {self._context}", hint="shorten the prompt or the path"
            )


class _NotKept:
    kept = False
    why = "a mock engine has no KV"


def _late(account: Account) -> bool:
    return account.deadline is not None and time.perf_counter() >= account.deadline


class _PrefixSet:
    """Texts and all their prefixes, as a sorted list: the longest shared prefix is with a neighbour."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self.size = 0
        """Characters stored, shared prefixes once."""

    def add(self, text: str) -> int:
        """Store a text; returns how many of its characters were not there."""
        at = bisect_left(self._texts, text)
        shared = max((_shared(text, other) for other in self._texts[max(at - 1, 0) : at + 1]), default=0)
        fresh = len(text) - shared
        if fresh and at and text.startswith(self._texts[at - 1]):
            self._texts[at - 1] = text
        elif fresh:
            self._texts.insert(at, text)
        self.size += fresh
        return fresh


def _shared(a: str, b: str) -> int:
    """Length of the longest common prefix, by bisection."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a.startswith(b[:middle]):
            low = middle
        else:
            high = middle - 1
    return low


def render(prompt: Prompt) -> str:
    """A prompt as one text: a string as it is, chat messages as turns."""
    if isinstance(prompt, str):
        return prompt
    return "".join(f"{turn['role']}: {turn['content']}\n" for turn in prompt) + "assistant: "
