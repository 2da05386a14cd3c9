"""What an engine is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic import Field

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.settings import Settings
from rksc_tot.core.task import Prompt
from rksc_tot.policies.early_exit.cgee import ExitRule, RivalStop

Finish = Literal["stop", "eos", "length", "budget", "rival"]
"""Why a text ended: a stop string, the model's end of text, or it was cut off."""


class Sampling(Settings):
    """How a token is drawn. ``temperature`` 0 is greedy; the filters apply in the order top-k, top-p, min-p."""

    kind = "sampling"
    temperature: float = Field(1.0, ge=0)
    top_k: int | None = Field(None, ge=1)
    top_p: float = Field(1.0, gt=0, le=1)
    min_p: float = Field(0.0, ge=0, le=1)


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Continue one path with one branch per stream.

    Branches draw from private streams: what a branch writes does not depend on the others.

    Attributes
    ----------
    handle
        The path.
    streams
        The key of each branch's random numbers (see :mod:`rksc_tot.core.seeds`).
    sampling
        How tokens are drawn.
    max_tokens
        Most tokens that a branch writes.
    stop
        Strings that end a branch.
    keep_stop
        Whether the stop string stays on the path. Then a branch that ended its text (``eos``) is closed with the first stop
        string, so that the next thought begins as after any other.
    skip_blank
        Whether stop strings that a branch begins with, and white space between them, do not end it. Their tokens stay on the
        path and count as sampled; the text begins after them.
    suffix
        Appended to the path before generating (proposals). Nothing of such a reply is kept, and completions have no handle.
    states
        Whether to keep the hidden states that :meth:`SharingEngine.similarity` compares.
    rivals
        When branches that still run may stop because one that has ended is decisive. They finish as ``rival``.
    """

    handle: Any
    streams: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    stop: tuple[str, ...] = ()
    keep_stop: bool = True
    skip_blank: bool = False
    suffix: Prompt | None = None
    states: bool = False
    rivals: RivalStop | None = None

    def __post_init__(self) -> None:
        """Refuse values that no engine could use."""
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}", hint="use at least 1")
        if not self.streams or not all(0 <= key < 1 << 128 for key in self.streams):
            raise ConfigError(f"streams are {self.streams}", hint="give each branch a key from rksc_tot.core.seeds")
        strings: Any = self.stop
        if not isinstance(strings, tuple) or not all(isinstance(string, str) and string for string in strings):
            raise ConfigError(f"stop strings are {self.stop!r}", hint="give a tuple of strings that are not empty")


class Completion(NamedTuple):
    """A text that one or more branches wrote.

    Attributes
    ----------
    text
        What was written, without the stop string and without those it began with (``skip_blank``).
    tokens
        What the handle holds beyond its parent.
    logprobs
        Of each of these tokens the model's own log-probability (temperature 1, no filter), in nats. Where a stop string cuts
        inside a token, ``tokens`` and ``logprobs`` are those of the kept text, not of the sampled token. Of the stop string
        that closes an ``eos`` the first token has the log-probability of the end of text, the others 0.
    finish
        Why the text ended. ``length``, ``budget`` and ``rival`` mean that it was cut off.
    branches
        Which branches (indices into ``streams``) wrote exactly this.
    handle
        The path after this text; owned by the caller.
    exact
        Whether every token was drawn from the KV of the full path.
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
    """Ask which label comes next after a question. Nothing of it stays in the cache.

    Attributes
    ----------
    handle
        The path.
    question
        Appended to the path.
    labels
        The labels to choose from.
    exit
        When the pass may stop before the last layer; None: never. Ignored where KV is not exact, since no rule was
        calibrated for that. Needs an engine whose :attr:`Engine.layers` is above 0.
    trace
        Whether to report what every layer says, which takes all layers. Needs the same.
    audit
        Whether this is an audit: the full KV of the path is computed on an isolated copy, which is dropped afterwards.
        Needs a :class:`CompressingEngine`.
    """

    handle: Any
    question: Prompt
    labels: tuple[str, ...]
    exit: ExitRule | None = None
    trace: bool = False
    audit: bool = False

    def __post_init__(self) -> None:
        """Refuse labels that are no strings."""
        labels: Any = self.labels
        if not isinstance(labels, tuple) or not all(isinstance(label, str) for label in labels):
            raise ConfigError(f"labels are {self.labels!r}", hint="give a tuple of strings")


class LabelScores(NamedTuple):
    """The answer to a :class:`LabelRequest`.

    Attributes
    ----------
    probabilities
        Of each label, summing to 1 over the labels.
    outside
        The model's probability of anything else, 0..1. None where only the labels were read (under an exit rule).
    layer
        After which decoder layer the pass stopped; None: it ran all of them.
    trace
        For each layer from the first to the last the label probabilities that the logit lens reads there, in the order of
        the labels. The last row is ``probabilities``.
    exact
        Whether the labels were read from the KV of the full path.
    """

    probabilities: Mapping[str, float]
    outside: float | None
    layer: int | None = None
    trace: tuple[tuple[float, ...], ...] | None = None
    exact: bool = True
