"""The calls that a search makes on an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from rksc_tot.core.task import Markers, Prompt
from rksc_tot.engine.base.account import Account, Usage
from rksc_tot.engine.base.requests import Completion, GenerateRequest, LabelRequest, LabelScores
from rksc_tot.engine.base.thinking import ThinkingFormat
from rksc_tot.policies.asks import PromptReuse
from rksc_tot.policies.compression.base import CompressionPolicy


class Handle(Protocol):
    """A token path in an engine. Opaque: compare by identity, release with ``engine.release``."""

    @property
    def length(self) -> int:
        """Tokens from the start of the prompt."""
        ...


class PromptReuseVerdict(Protocol):
    """Whether a prompt variant reuses KV of the prompt."""

    @property
    def kept(self) -> bool:
        """Whether the variant uses KV of the prompt. If so, results after it are not exact."""
        ...

    @property
    def why(self) -> str | None:
        """Why no KV is reused; None if KV is reused."""
        ...


@runtime_checkable
class Reader(Protocol):
    """Reads label probabilities after paths: an engine of a language model, or that of a reward model."""

    @property
    def name(self) -> str:
        """Model name for reports."""
        ...

    @property
    def numerics(self) -> Mapping[str, Any]:
        """The facts that a result depends on besides the seed: dtype, device, attention path, versions."""
        ...

    @property
    def layers(self) -> int:
        """Decoder layers for early exit and traces of label requests; 0 if this engine supports neither."""
        ...

    async def label(self, requests: Sequence[LabelRequest], account: Account) -> Sequence[LabelScores | None]:
        """Label probabilities of each request; None where the deadline came first."""
        ...


@runtime_checkable
class Engine(Reader, Protocol):
    """The calls that :class:`~rksc_tot.search.Search` needs; implemented by the transformers engine and the mock engine."""

    @property
    def usage(self) -> Usage:
        """Totals of this engine; cheap, and never waits for a pass."""
        ...

    def open(self, prompt: Prompt, account: Account, thinking: ThinkingFormat | None = None) -> Any:
        """A handle for a prompt; nothing is computed yet. Raises ContextOverflow if it is longer than the context.

        ``thinking``: the format of :meth:`ThinkingEngine.thinking_format`, for a path without a block that the prompt opens.
        """
        ...

    def extend(self, handle: Any, words: Prompt) -> Any:
        """A handle for the path continued by a text (tokenised as a continuation) or by chat messages as the next turns.

        Nothing is computed yet. Raises ContextOverflow if the path becomes longer than the context.
        """
        ...

    async def generate(self, requests: Sequence[GenerateRequest], account: Account) -> list[list[Completion]]:
        """Completions of each request, ordered by their first branch; every branch is in exactly one of them."""
        ...

    def release(self, handle: Any) -> None:
        """Release a handle. Its KV stays resident until room is needed."""
        ...

    def rate(self, handle: Any, score: float, depth: int) -> None:
        """Rate a path for eviction: the score of its last thought, and its number of thoughts."""
        ...

    def close(self) -> None:
        """Free everything. Further calls raise EngineError."""
        ...


@runtime_checkable
class ThinkingEngine(Engine, Protocol):
    """An engine whose model may write thinking blocks."""

    def thinking_format(self, prompt: Prompt, markers: Markers | None) -> ThinkingFormat:
        """How thinking blocks are written after a prompt.

        ``markers``: named by the user; None: they are read off the tokenizer and its chat template. Raises ConfigError, with what
        was looked for, if there are none.
        """
        ...

    def append(self, handle: Any, tokens: Sequence[int]) -> Any:
        """A handle for the path continued by tokens; nothing is computed yet. Raises ContextOverflow as :meth:`extend`."""
        ...


@runtime_checkable
class SharingEngine(Engine, Protocol):
    """An engine with access to hidden states and KV, which approximate sharing (ASKS) needs."""

    def similarity(self, handle: Any, others: Sequence[Any], alpha: float) -> list[float | None]:
        """σ (ASKS) between a thought generated with ``states`` and others; None for thoughts without states."""
        ...

    async def open_variant(
        self, prompt: Prompt, reference: Any, rule: PromptReuse, account: Account, key: int
    ) -> tuple[Any, PromptReuseVerdict]:
        """A handle for a prompt variant (ASKS, phrasing), and whether the variant uses KV of the prompt.

        Parameters
        ----------
        prompt
            As for :meth:`open`.
        reference
            An open handle of the prompt whose KV is reused. Its KV is made resident.
        rule
            When reused KV is kept.
        account
            The account that pays.
        key
            Seeds the audit: a key from :mod:`rksc_tot.core.seeds`.

        Returns
        -------
        tuple
            The handle and the decision. If reused KV was kept, results from this handle on are approximate. Otherwise the handle
            is exact and not computed yet.
        """
        ...

    async def divergence(self, pairs: Sequence[tuple[Any, Any]], account: Account) -> list[tuple[float, bool] | None]:
        """Compare the next token after two paths: KL(first || second) in nats, and whether the likeliest token is the same.

        None where the deadline came first.
        """
        ...


@runtime_checkable
class StatesEngine(Engine, Protocol):
    """An engine that keeps the hidden states at the ends of thoughts."""

    def hidden_state(self, handle: Any, layer: int) -> Sequence[float] | None:
        """The hidden state ``[H]`` after a decoder layer, counted from 1, of the row that predicts the last token of a thought.

        None for a path that does not end with a thought generated with ``states``, or if the model allows no reads between its
        layers.
        """
        ...


@runtime_checkable
class CompressingEngine(Engine, Protocol):
    """An engine that may compress the KV of a path."""

    @property
    def compression(self) -> CompressionPolicy | None:
        """The compression policy; None: all KV is kept."""
        ...

    async def rehydrate(self, handles: Sequence[Any], account: Account) -> list[bool]:
        """Restore the full KV of paths; False where the deadline came first. Raises CacheError if there is no room."""
        ...

    async def against_full(self, handles: Sequence[Any], account: Account) -> list[tuple[float, bool] | None]:
        """Compare the next token with that on the full KV of each path, as in :meth:`SharingEngine.divergence`.

        Raises CacheError if there is no room for the full KV.
        """
        ...
