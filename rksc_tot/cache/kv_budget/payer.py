"""Counts the resident tokens of each search, where its budget limits them."""

from __future__ import annotations

from typing import Protocol


class Payer(Protocol):
    """An account that is charged for resident tokens.

    Attributes
    ----------
    kv_rows
        Tokens that are resident on the account.
    """

    kv_rows: int


def charge(payer: Payer | None, tokens: int) -> None:
    """Count tokens that became resident on an account, or with a negative number left it. None: no account is charged."""
    if payer is not None:
        payer.kv_rows += tokens
