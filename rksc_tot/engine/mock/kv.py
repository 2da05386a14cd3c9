"""The KV cache of the mock engine: a character is a token, and a token takes a byte."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from rksc_tot.engine.base import Account


class MockHandle:
    """A path of the mock engine: a text.

    Attributes
    ----------
    text
        The whole path, prompt included.
    kept
        The KV of the account that the path belongs to.
    released
        Whether the handle was released.
    """

    __slots__ = ("kept", "released", "text")

    def __init__(self, text: str, kept: MockKV) -> None:
        self.text = text
        self.kept = kept
        self.released = False
        kept.handles.add(self)

    @property
    def length(self) -> int:
        """Characters from the start of the prompt."""
        return len(self.text)


class MockKV:
    """The resident texts of one account; shared prefixes count once.

    Attributes
    ----------
    account
        The account.
    handles
        Handles that were not released.
    held
        Texts that are resident.
    met
        Texts that were ever resident.
    """

    def __init__(self, account: Account) -> None:
        self.account = account
        self.handles: set[MockHandle] = set()
        self.held = PrefixSet()
        self.met = PrefixSet()

    def store(self, text: str, account: Account, needed: Iterable[str] = ()) -> int | None:
        """Make a text resident and book its rows.

        To make room, characters are evicted unless they are on a handle's path, in ``needed`` or in the text.

        Returns
        -------
        int or None
            Number of computed characters; None if the limit of ``account`` leaves no room.
        """
        if not self._make_room(len(text) - self.held.shared(text), account, (text, *needed)):
            return None
        computed, distinct = self.held.add(text), self.met.add(text)
        account.ledger.book_rows(computed, distinct, decoded=True)  # _visit books prefills by Ledger.book_visit
        return computed

    def fitting(self, text: str, account: Account, needed: Iterable[str] = ()) -> int:
        """Length of the longest prefix of a text that :meth:`store` has room for."""
        if account.kv_bytes is None:
            return len(text)
        self._make_room(len(text) - self.held.shared(text), account, (text, *needed))
        return min(len(text), self.held.shared(text) + account.kv_bytes - self.held.size)

    def _make_room(self, fresh: int, account: Account, needed: Iterable[str]) -> bool:
        if account.kv_bytes is None or self.held.size + fresh <= account.kv_bytes:
            return True
        left = PrefixSet()
        for wanted in (*(handle.text for handle in self.handles), *needed):
            left.add(wanted[: self.held.shared(wanted)])
        account.ledger.evicted_tokens += self.held.size - left.size
        self.held = left
        return left.size + fresh <= account.kv_bytes


class PrefixSet:
    """Texts and all their prefixes, as a sorted list: the text with the longest shared prefix is always a neighbour."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self.size = 0
        """Characters stored, shared prefixes once."""

    def shared(self, text: str) -> int:
        """Length of the longest prefix of a text that is stored."""
        at = bisect_left(self._texts, text)
        return max((_shared(text, other) for other in self._texts[max(at - 1, 0) : at + 1]), default=0)

    def add(self, text: str) -> int:
        """Store a text; returns how many of its characters are new."""
        at = bisect_left(self._texts, text)
        fresh = len(text) - self.shared(text)
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
