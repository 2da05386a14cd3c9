"""All errors of the package.

::

    RkscTotError
     ├── ConfigError          a setting, a file or an argument is wrong
     │    └── ConstraintError        the constraint of a thought is invalid, or cannot be satisfied
     ├── TaskError            a task is incomplete or fails on every thought, or it refuses a problem
     ├── VerifierError        a verifier hung, raised, or returned no usable score
     ├── EngineError
     │    ├── ModelLoadError      no such model, or not a causal LM
     │    ├── UnsupportedModel    the model cannot decode a tree exactly; the reason is in the message
     │    └── ContextOverflow     more tokens than the model's context
     ├── CacheError           the KV arena is full and nothing may be evicted
     │    ├── AccountFull            a search reached its own KV limit
     │    └── CompressionError       a compression policy failed or returned an invalid selection
     └── MissingExtra         an optional dependency is not installed
"""

from __future__ import annotations

from typing import Any


class RkscTotError(Exception):
    """Base of all errors. ``str(error)`` says what was wrong and, after a dash, what to do next.

    ``message``, ``hint``: its two halves. ``result``: the best :class:`~rksc_tot.Result` so far of the search that the error
    ended, else None.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message, self.hint = message, hint
        self.result: Any = None
        super().__init__(f"{message} - {hint}" if hint else message)


class ConfigError(RkscTotError, ValueError):
    """A setting, a file or an argument is wrong."""


class ConstraintError(ConfigError):
    """The constraint of a thought is invalid, too large, or cannot be satisfied by this model within the token limit."""


class TaskError(RkscTotError):
    """A task is incomplete or fails on every thought, or it refuses a problem."""


class VerifierError(RkscTotError):
    """A verifier hung, raised, or returned something that is not a finite number."""


class EngineError(RkscTotError):
    """The engine could not serve a request."""


class ModelLoadError(EngineError):
    """The model could not be loaded."""


class UnsupportedModel(EngineError):
    """The loaded model cannot decode a tree exactly; the message says why."""


class ContextOverflow(EngineError):
    """A path has more tokens than the model's context."""


class CacheError(EngineError):
    """The KV arena is full and nothing in it may be evicted."""


class AccountFull(CacheError):
    """A search reached its own KV limit."""


class CompressionError(CacheError):
    """A compression policy failed or returned an invalid selection. The message names policy and fault."""


class MissingExtra(RkscTotError, ImportError):
    """An optional dependency is not installed; the message names the extra."""
