"""Requests to an engine, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.core.task import Constraint, Prompt
from rksc_tot.core.task.sampling import Sampling
from rksc_tot.core.task.stop_rules import StopRule
from rksc_tot.policies.early_exit.cgee import ExitRule, RivalStop

Finish = Literal["stop", "eos", "length", "budget", "rival", "stuck"]
"""Why a text ended: at a stop string or complete under its constraint, at the model's end of text, or cut off."""

STEP_LABELS = ("incorrect", "correct")
"""The labels of a reward model's reading, in the order of the classes of its head."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Continue one path with one branch per stream.

    Branches draw from private streams, so the text of a branch does not depend on other branches.

    Attributes
    ----------
    handle
        The path.
    streams
        The key of each branch's random numbers (see :mod:`rksc_tot.core.seeds`).
    sampling
        How tokens are drawn.
    max_tokens
        Most tokens of a branch.
    stop
        Strings that end a branch.
    keep_stop
        Whether the stop string stays on the path. If so, a branch that ends with end of text (``eos``) is closed with the first
        stop string, so that the next thought begins like any other.
    rule
        A further rule that ends a branch, where stop strings cannot.
    skip_blank
        Whether stop strings at the start of a branch, and white space between them, are skipped. Their tokens stay on the path
        and count as sampled; the text begins after them.
    suffix
        Appended to the path before generating (proposals). No KV of such a reply is kept, and completions have no handle.
    states
        Whether to keep hidden states at the ends of completions, see :meth:`StatesEngine.hidden_state`.
    rivals
        The rule by which a finished branch ends branches that still run. They finish as ``rival``.
    verifying
        Whether a verifier asks. The rows of suffix and reply then count as verifier tokens, not as proposal tokens.
    constraint
        The form of the text. Only tokens with which the text can still take this form are drawn, and end of text only where the
        text has it. Stop strings end no text then: it ends where no more is allowed (``stop``), and the first stop string closes
        it on the path (``keep_stop``). A text that is cut off does not have the form; ``stuck``: no token could follow.
    """

    handle: Any
    streams: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    stop: tuple[str, ...] = ()
    keep_stop: bool = True
    skip_blank: bool = False
    rule: StopRule | None = None
    suffix: Prompt | None = None
    states: bool = False
    rivals: RivalStop | None = None
    verifying: bool = False
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}", hint="use at least 1")
        if not self.streams or not all(0 <= key < 1 << 128 for key in self.streams):
            raise ConfigError(f"streams are {self.streams}", hint="give each branch a key from rksc_tot.core.seeds")
        strings: Any = self.stop
        if not isinstance(strings, tuple) or not all(isinstance(string, str) and string for string in strings):
            raise ConfigError(f"stop strings are {self.stop!r}", hint="give a tuple of strings that are not empty")

    @property
    def ending(self) -> str:
        """The text that closes a branch that ended with end of text; empty without ``keep_stop``."""
        if not self.keep_stop:
            return ""
        return self.stop[0] if self.stop else self.rule.ending if self.rule is not None else ""


class Completion(NamedTuple):
    """A text of one or more branches.

    Attributes
    ----------
    text
        The text, without the stop string and without skipped stop strings at its start (``skip_blank``).
    tokens
        Tokens of the handle's path beyond its parent.
    logprobs
        Log-probability of each of these tokens (temperature 1, no filter), in nats. If a stop string cuts inside a token,
        ``tokens`` and ``logprobs`` are those of the kept text, not of the sampled token. If a stop string closes an ``eos``,
        its first token has the log-probability of the end of text, and its other tokens have 0.
    finish
        Why the text ended. ``length``, ``budget``, ``rival`` and ``stuck`` mean that it was cut off.
    branches
        Indices into ``streams`` of the branches with exactly these tokens.
    handle
        The path after this text; owned by the caller.
    exact
        Whether every token was drawn from the KV of the full path.
    constrained_logprobs
        Log-probability of each token among those that the constraint allowed; empty without a constraint. A stop string that
        closes the text is not under the constraint, so its tokens have the same values as in ``logprobs``.
    lead
        Stop strings at the start of the branch that are not in the text (``skip_blank``).
    ending
        What follows the text on the handle's path: the stop string, or that which closes an ``eos``; empty if nothing does.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    branches: tuple[int, ...]
    handle: Any
    exact: bool = True
    constrained_logprobs: tuple[float, ...] = ()
    lead: str = ""
    ending: str = ""


@dataclass(frozen=True, slots=True)
class LabelRequest:
    """Label probabilities after a question. No KV of the question stays in the cache.

    Attributes
    ----------
    handle
        The path.
    question
        Appended to the path.
    labels
        The labels to choose from.
    exit
        The rule for early exit; None: all layers. Ignored on KV that is not exact, since rules are calibrated on exact KV.
        Needs an engine whose :attr:`Engine.layers` is above 0.
    trace
        Whether to report the label probabilities of every layer, which takes all layers. Needs :attr:`Engine.layers` as well.
    audit
        Whether this is an audit: full KV of the path is computed on an isolated copy, which is dropped afterwards.
        Needs a :class:`CompressingEngine`.
    """

    handle: Any
    question: Prompt
    labels: tuple[str, ...]
    exit: ExitRule | None = None
    trace: bool = False
    audit: bool = False

    def __post_init__(self) -> None:
        """Refuse labels that are not strings."""
        labels: Any = self.labels
        if not isinstance(labels, tuple) or not all(isinstance(label, str) for label in labels):
            raise ConfigError(f"labels are {self.labels!r}", hint="give a tuple of strings")


class LabelScores(NamedTuple):
    """The result of a :class:`LabelRequest`.

    Attributes
    ----------
    probabilities
        Probability of each label; they sum to 1.
    outside
        Probability of all other tokens, 0..1. None under an exit rule, which reads only the labels.
    layer
        Decoder layer after which the labels were read, under an exit rule or a trace; else None.
    trace
        Label probabilities by the logit lens after each layer, in the order of the labels. The last row equals
        ``probabilities``.
    exact
        Whether the labels were read from the KV of the full path.
    likeliest
        If most of the probability is outside the labels: the likeliest first tokens of an answer, as text with their
        probability. Empty otherwise, under an exit rule or a trace, and if the engine does not know them.
    """

    probabilities: Mapping[str, float]
    outside: float | None
    layer: int | None = None
    trace: tuple[tuple[float, ...], ...] | None = None
    exact: bool = True
    likeliest: tuple[tuple[str, float], ...] = ()

    def outside_of(self, labels: Iterable[str]) -> str:
        """A sentence on the probability outside the labels, with what the model would write instead."""
        named = ", ".join(map(repr, labels))
        sentence = f"the model gave {self.outside or 0.0:.0%} of its probability to tokens outside the labels {named}"
        written = ", ".join(f"{shown(text)} ({probability:.0%})" for text, probability in self.likeliest)
        return f"{sentence}; its likeliest tokens are {written}" if written else sentence
