"""Checks of requests that all engines share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rksc_tot.core.errors import CacheError, ConfigError, EngineError
from rksc_tot.engine.base.account import Account
from rksc_tot.engine.base.requests import LabelRequest

CLOSED = "the engine is closed"


def check_handle(handle: Any, own: bool) -> None:
    """Raise EngineError if a handle belongs to another engine (``own`` is False) or was released."""
    if not own:
        raise EngineError(
            f"{handle!r} is not a handle of this engine", hint="use handles that open, extend or generate returned"
        )
    if handle.released:
        raise EngineError("this handle was released", hint="keep a node's handle until you are done with the node")


def check_layers(requests: Sequence[LabelRequest], name: str, layers: int, reason: str) -> None:
    """Raise ConfigError for a request with early exit or a trace, if the model allows neither (0 ``layers``) for ``reason``."""
    if not layers and any(request.exit is not None or request.trace for request in requests):
        raise ConfigError(f"{name} allows no reads between its layers: {reason}", hint="ask without early exit")


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
