"""A run of tokens in the prefix tree."""

from __future__ import annotations

from typing import Any, Protocol

Key = tuple[int, tuple[float, ...], int]
"""Round, the policy's order, id: the smallest is evicted first."""


class Payer(Protocol):
    """Whoever counts the tokens that are resident on his account."""

    kv_rows: int


class Segment:
    """A run of tokens without a fork. Only :class:`~rksc_tot.cache.prefix_tree.PrefixTree` changes it."""

    __slots__ = (
        "children",
        "handles",
        "id",
        "importance",
        "keep",
        "logits",
        "parent",
        "payer",
        "pins",
        "prompts",
        "queued",
        "slots",
        "start",
        "states",
        "stored_children",
        "stored_once",
        "tokens",
        "used_at",
        "uses",
    )

    def __init__(self, parent: Segment | None, tokens: list[int], start: int, id: int) -> None:
        self.id = id
        self.parent = parent
        self.tokens = tokens
        self.start = start  # position of the first token
        self.slots: list[int] = []  # of tokens[: len(slots)]; the rest is not resident
        self.payer: Payer | None = None  # on whose account the slots are, where somebody counts
        self.stored_once = 0  # how many tokens have ever been resident
        self.children: dict[int, Segment] = {}
        self.stored_children: dict[Segment, None] = {}  # those with slots, and maybe some that lost theirs
        self.handles = 0
        self.prompts = 0  # of open searches, at or below
        self.pins = 0  # running work at or below
        self.used_at = 0
        self.uses = 0  # visits
        self.importance: float | None = None  # as it was rated
        self.keep = False  # what is computed anew would not be the same
        self.queued: Key | None = None  # where it stands among the victims
        self.logits: Any = None  # next-token logits at the end, while somebody may want them
        self.states: Any = None  # hidden states [L, H] of the last row computed on the way here, likewise

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + len(self.tokens)

    @property
    def resident(self) -> bool:
        """Whether all its tokens are."""
        return len(self.slots) == len(self.tokens)

    def is_leaf(self) -> bool:
        """Whether nothing below is resident."""
        while self.stored_children:
            child = next(iter(self.stored_children))
            if child.slots:
                return False
            del self.stored_children[child]
        return True

    def lineage(self) -> list[Segment]:
        """Segments from the first to this one."""
        found: list[Segment] = []
        at: Segment | None = self
        while at is not None and at.parent is not None:
            found.append(at)
            at = at.parent
        return found[::-1]
