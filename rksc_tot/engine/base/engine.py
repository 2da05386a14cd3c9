"""The calls that a search makes on an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from rksc_tot.core.task import Prompt
from rksc_tot.engine.base.account import Account, Usage
from rksc_tot.engine.base.requests import Completion, GenerateRequest, LabelRequest, LabelScores
from rksc_tot.policies.asks import PromptReuse
from rksc_tot.policies.compression.base import CompressionPolicy


class Handle(Protocol):
    """A token path in an engine. Opaque: compare by identity, give back with ``engine.release``."""

    @property
    def length(self) -> int:
        """Tokens from the start of the prompt."""
        ...


class PromptReuseVerdict(Protocol):
    """Whether KV was reused for another wording of a prompt."""

    @property
    def kept(self) -> bool:
        """Whether the prompt stands on KV of the first wording, so that all that follows is not exact."""
        ...

    @property
    def why(self) -> str | None:
        """Why not; None where it does."""
        ...


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
        """The compression policy; None: all KV is kept."""
        ...

    async def rehydrate(self, handles: Sequence[Any], account: Account) -> list[bool]:
        """Restore the full KV of paths; False where the deadline came first. Raises CacheError if there is no room."""
        ...

    async def against_full(self, handles: Sequence[Any], account: Account) -> list[tuple[float, bool] | None]:
        """How the next token differs from that on the full KV of a path, as in :meth:`SharingEngine.divergence`.

        Raises CacheError if there is no room for the full KV.
        """
        ...
