"""The contract of an engine: what a search may ask of a language model.

An engine knows tokens and handles, no task and no tree. A *handle* stands for a token path (prompt, thoughts so far) and,
while it is resident, for the KV of those tokens. All work of one call is submitted at once, so an engine can put it, and
the work of other searches, into the same forward passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from pydantic import Field

from rksc_tot.core.errors import CacheError, ConfigError
from rksc_tot.core.ledger import Ledger
from rksc_tot.core.plugins.settings import Settings
from rksc_tot.core.task import Prompt
from rksc_tot.policies.asks import PromptReuse
from rksc_tot.policies.compression.base import CompressionPolicy
from rksc_tot.policies.early_exit.cgee import ExitRule, RivalStop

Finish = Literal["stop", "eos", "length", "budget", "rival"]


class Sampling(Settings):
    """How a token is drawn. ``temperature`` 0 is greedy; the filters apply in the order top-k, top-p, min-p."""

    kind = "sampling"
    temperature: float = Field(1.0, ge=0)
    top_k: int | None = Field(None, ge=1)
    top_p: float = Field(1.0, gt=0, le=1)
    min_p: float = Field(0.0, ge=0, le=1)


@dataclass(slots=True)
class Account:
    """Who pays: where rows are booked, and what may still be spent; None means no limit.

    ``tokens_left``: tokens that may still be sampled. ``deadline``: until when (perf_counter). ``kv_bytes``: most KV that may
    be resident on this account. ``run``: the account of many searches together, from which sampled tokens are taken as well.
    The engine's own: ``kv_rows``, tokens that are resident on it; ``kv_short``, whether ``kv_bytes`` kept something from
    being computed.
    """

    ledger: Ledger = field(default_factory=Ledger)
    tokens_left: int | None = None
    deadline: float | None = None
    kv_bytes: int | None = None
    kv_rows: int = 0
    run: Account | None = None
    kv_short: bool = False

    @property
    def limited(self) -> bool:
        """Whether the tokens that may be sampled are."""
        return self.tokens_left is not None or (self.run is not None and self.run.limited)

    def kv_tokens(self, size: int) -> int | None:
        """How many tokens of ``size`` bytes may be resident on it; None: any number."""
        return None if self.kv_bytes is None else self.kv_bytes // size

    def draws_on(self, account: Account) -> bool:
        """Whether what it takes is taken from that one."""
        return self is account or (self.run is not None and self.run.draws_on(account))

    def take(self, wanted: int) -> int:
        """Book up to ``wanted`` sampled tokens; returns how many were granted."""
        granted = wanted if self.tokens_left is None else max(0, min(wanted, self.tokens_left))
        if self.run is not None:
            granted = self.run.take(granted)
        if self.tokens_left is not None:
            self.tokens_left -= granted
        self.ledger.tokens_sampled += granted
        return granted


def check_prompt_kv(tokens: int, token_bytes: int, account: Account, limit: int | None = None) -> None:
    """Raise CacheError if a prompt has more tokens than ``limit``, or takes more KV than its account may hold."""
    size = tokens * token_bytes
    takes = f"the prompt's {tokens} tokens take {size} bytes of KV"
    if limit is not None and tokens > limit:
        raise CacheError(
            f"{takes}, the budget holds {limit * token_bytes}",
            hint="raise the KV budget, and leave room for the thoughts",
        )
    if account.kv_bytes is not None and size > account.kv_bytes:
        raise CacheError(
            f"{takes}, the search may hold {account.kv_bytes}",
            hint="raise its budget of KV bytes, and leave room for the thoughts",
        )


class Usage(NamedTuple):
    """What an engine has done and holds, for all searches together.

    ``passes``: forward passes so far. ``rows``: tokens computed in them. ``most_rows``: of one pass. ``kv_bytes``: KV resident
    now. ``kv_budget``: most of that, None without a limit. ``waiting``: requests that are not answered yet.
    """

    passes: int
    rows: int
    most_rows: int | None
    kv_bytes: int
    kv_budget: int | None
    waiting: int


class Handle(Protocol):
    """A token path in an engine. Opaque: compare by identity, give back with ``engine.release``."""

    @property
    def length(self) -> int:
        """Tokens from the start of the prompt."""
        ...


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Continue one path with one branch per stream.

    Branches draw from private streams: what a branch writes does not depend on the others. With ``keep_stop`` the stop string
    stays on the path, and a branch that ended its text (``eos``) is closed with the first stop string, so that what comes
    after it begins as after any other. ``suffix`` (proposals) is
    appended as scratch before generating; nothing of such a reply is kept and completions carry no handle. ``states``: keep
    what thoughts are compared by in :meth:`Engine.similarity`. ``rivals``: when branches that still run may stop because one
    that has ended is decisive; they finish as ``rival``.
    """

    handle: Any
    streams: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    stop: tuple[str, ...] = ()
    keep_stop: bool = True
    suffix: Prompt | None = None
    states: bool = False
    rivals: RivalStop | None = None

    def __post_init__(self) -> None:
        """Refuse what no engine could do."""
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}", hint="use at least 1")
        if not self.streams or not all(0 <= key < 1 << 128 for key in self.streams):
            raise ConfigError(f"streams are {self.streams}", hint="give each branch a key from rksc_tot.core.seeds")
        strings: Any = self.stop
        if not isinstance(strings, tuple) or not all(isinstance(string, str) and string for string in strings):
            raise ConfigError(f"stop strings are {self.stop!r}", hint="give a tuple of strings that are not empty")


class Completion(NamedTuple):
    """A text that one or more branches wrote.

    ``text``: without the stop string. ``tokens``, ``logprobs``: what the handle holds beyond its parent; log-probabilities
    are the model's own for these tokens (temperature 1, no filter), in nats. Where a stop string cuts inside a token, both are
    of the tokens of the kept text, not of the sampled token. The closing stop string of ``eos`` has the log-probability of the
    end of text at its first token, and 0 at others. ``finish``: ``length``, ``budget`` and ``rival`` mean cut off.
    ``branches``: which branches (indices into ``streams``) wrote exactly this. ``handle``: owned by the caller. ``exact``:
    whether every token was drawn upon the KV of the full path.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    branches: tuple[int, ...]
    handle: Any
    exact: bool = True


@dataclass(frozen=True, slots=True)
class LabelRequest:
    """Ask which label comes next after ``question`` is appended to the path. Leaves no trace in the cache.

    ``exit``: when the pass may stop before the last layer; None runs them all, and so does KV that is not exact, for which no
    rule was calibrated. ``trace``: report what every layer says, which takes them all. Both need an engine whose
    :attr:`Engine.layers` is above 0. ``aside``: ask upon all KV of the path, which is computed on the side and forgotten, as
    an audit; needs a :class:`CompressingEngine`.
    """

    handle: Any
    question: Prompt
    labels: tuple[str, ...]
    exit: ExitRule | None = None
    trace: bool = False
    aside: bool = False

    def __post_init__(self) -> None:
        """Refuse labels that are none."""
        labels: Any = self.labels
        if not isinstance(labels, tuple) or not all(isinstance(label, str) for label in labels):
            raise ConfigError(f"labels are {self.labels!r}", hint="give a tuple of strings")


class PromptReuseVerdict(Protocol):
    """What became of a prompt under other wording."""

    @property
    def kept(self) -> bool:
        """Whether it stands on KV that it took over, so that what follows is not exact."""
        ...

    @property
    def why(self) -> str | None:
        """Why not, where it does not."""
        ...


class LabelScores(NamedTuple):
    """``probabilities``: of each label, summing to 1 over the labels. ``outside``: model mass on anything else, 0..1, None
    where only the labels were read (under an exit rule). ``layer``: how many decoder layers were run, None: all of them.
    ``trace``: for each layer from the first to the last the label probabilities the logit lens reads there, in the order of
    the labels; its last row is ``probabilities``. ``exact``: whether they were read upon the KV that the full path gives.
    """

    probabilities: Mapping[str, float]
    outside: float | None
    layer: int | None = None
    trace: tuple[tuple[float, ...], ...] | None = None
    exact: bool = True


@runtime_checkable
class Engine(Protocol):
    """What :class:`~rksc_tot.search.Search` needs; the transformers engine and the mock engine both satisfy it."""

    @property
    def name(self) -> str:
        """Model name for reports."""
        ...

    @property
    def numerics(self) -> Mapping[str, Any]:
        """What a result depends on besides the seed: dtype, device, attention path, versions."""
        ...

    @property
    def layers(self) -> int:
        """Decoder layers a label request may exit from or trace; 0 if this engine can do neither."""
        ...

    @property
    def usage(self) -> Usage:
        """What this engine has done and holds so far; cheap, and never waits for a pass."""
        ...

    def open(self, prompt: Prompt, account: Account) -> Any:
        """A handle for a prompt; nothing is computed yet. Raises ContextOverflow if it is longer than the context."""
        ...

    def extend(self, handle: Any, text: str) -> Any:
        """A handle for the path continued by ``text`` (tokenised as a continuation); nothing is computed yet."""
        ...

    async def generate(self, requests: Sequence[GenerateRequest], account: Account) -> list[list[Completion]]:
        """Completions of each request, ordered by their first branch; every branch stands in exactly one of them."""
        ...

    async def label(self, requests: Sequence[LabelRequest], account: Account) -> Sequence[LabelScores | None]:
        """Label probabilities of each request; None where the deadline came first."""
        ...

    def release(self, handle: Any) -> None:
        """Give a handle back. Its KV stays resident until room is needed."""
        ...

    def rate(self, handle: Any, score: float, depth: int) -> None:
        """Say what a path is worth: the score of its last thought and how many thoughts it has. Eviction may heed it."""
        ...

    def close(self) -> None:
        """Free everything. Further calls raise EngineError."""
        ...


@runtime_checkable
class SharingEngine(Engine, Protocol):
    """An engine with hidden states and KV of its own, as approximate sharing (ASKS) needs it."""

    def similarity(self, handle: Any, others: Sequence[Any], alpha: float) -> list[float | None]:
        """σ (ASKS) between a thought generated with ``states`` and others, None where the states are gone."""
        ...

    async def open_variant(
        self, prompt: Prompt, reference: Any, rule: PromptReuse, account: Account, key: int
    ) -> tuple[Any, PromptReuseVerdict]:
        """A handle for another wording of a prompt (ASKS, phrasing), and whether it stands on KV of the first wording.

        Parameters
        ----------
        prompt
            As for :meth:`open`.
        reference
            An open handle of the first wording, whose KV is reused. It is made resident.
        rule
            When reused KV is kept.
        account
            The account that pays.
        key
            Seeds the audit: a key from :mod:`rksc_tot.core.seeds`.

        Returns
        -------
        tuple
            The handle and the decision. Unless reused KV was kept, the handle is exact and nothing of it is computed yet;
            otherwise results from this handle on are approximate.
        """
        ...

    async def divergence(self, pairs: Sequence[tuple[Any, Any]], account: Account) -> list[tuple[float, bool] | None]:
        """How the next token differs after two paths: KL(first || second) in nats, and whether the likeliest is the same.

        None where the deadline came first.
        """
        ...


@runtime_checkable
class CompressingEngine(Engine, Protocol):
    """An engine that may keep less than all KV of a path."""

    @property
    def compression(self) -> CompressionPolicy | None:
        """What is kept; None: everything."""
        ...

    async def rehydrate(self, handles: Sequence[Any], account: Account) -> list[bool]:
        """Make paths whole again; False where the deadline came first. Raises CacheError if there is no room."""
        ...

    async def against_full(self, handles: Sequence[Any], account: Account) -> list[tuple[float, bool] | None]:
        """How the next token differs from what it is upon all KV of a path, as :meth:`SharingEngine.divergence` says it.

        Raises CacheError if there is no room to find out.
        """
        ...
