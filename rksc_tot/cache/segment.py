"""A segment of the prefix tree: a run of tokens without a fork."""

from __future__ import annotations

from typing import Any

from rksc_tot.cache.segment_kv import SegmentKV

QueueKey = tuple[int, tuple[float, ...], int]
"""Position in the eviction queue: the round, the policy's order, and the segment's id. The smallest key is evicted first."""


class Segment:
    """A run of tokens without a fork.

    :class:`~rksc_tot.cache.prefix_tree.PrefixTree` changes tokens and links,
    :class:`~rksc_tot.cache.residency.Residency` changes all that concerns KV and eviction.

    Attributes
    ----------
    id
        Number of the segment; later segments have higher ones.
    parent
        The segment that this one continues; None for an origin, which holds no tokens.
    tokens
        Token ids.
    start
        Position of the first token.
    end
        Position after the last token.
    kv
        The KV of the tokens.
    children
        The segments that continue this one, by their first token.
    stored_children
        The children that hold KV. Some may have lost theirs since.
    handles
        Handles at the end of this segment.
    prompts
        Open searches whose prompt ends here or below.
    pins
        Running jobs here or below.
    last_used
        Clock of the last visit.
    uses
        Number of visits.
    importance
        Importance that this path was rated with; None: it was not rated.
    score
        Score behind ``importance``.
    entropy
        Entropy of the token after this segment in nats, where a compression policy needs it.
    irreplaceable
        Whether computing the KV again would give other values.
    queue_key
        Key of the segment's newest entry in the eviction queue.
    logits
        Next-token logits at the end, while a job or a handle may need them.
    states
        Hidden states ``[L, H]`` of the last row computed here, while a handle may need them.
    """

    __slots__ = (
        "children",
        "end",
        "entropy",
        "handles",
        "id",
        "importance",
        "irreplaceable",
        "kv",
        "last_used",
        "logits",
        "parent",
        "pins",
        "prompts",
        "queue_key",
        "score",
        "start",
        "states",
        "stored_children",
        "tokens",
        "uses",
    )

    def __init__(self, parent: Segment | None, tokens: list[int], start: int, id: int) -> None:
        self.id = id
        self.parent = parent
        self.tokens = tokens
        self.start = start
        self.end = start + len(tokens)
        self.kv = SegmentKV()
        self.children: dict[int, Segment] = {}
        self.stored_children: dict[Segment, None] = {}
        self.handles = 0
        self.prompts = 0
        self.pins = 0
        self.last_used = 0
        self.uses = 0
        self.importance: float | None = None
        self.score: float | None = None
        self.entropy: float | None = None
        self.irreplaceable = False
        self.queue_key: QueueKey | None = None
        self.logits: Any = None
        self.states: Any = None

    # -- the path ----------------------------------------------------------------------------------------------------

    def lineage(self) -> list[Segment]:
        """The segments of the path, from the first to this one."""
        found: list[Segment] = []
        at: Segment | None = self
        while at is not None and at.parent is not None:
            found.append(at)
            at = at.parent
        return found[::-1]

    def subtree(self) -> list[Segment]:
        """The segment and all below it, parents first."""
        found = [self]
        for segment in found:
            found.extend(segment.children.values())
        return found

    # -- references --------------------------------------------------------------------------------------------------

    @property
    def unreferenced(self) -> bool:
        """Whether no handle, job or child refers to this segment."""
        return self.parent is not None and not (self.handles or self.pins or self.children)

    @property
    def is_end(self) -> bool:
        """Whether a handle or a running job ends exactly here."""
        return self.handles > 0 or self.pins > sum(child.pins for child in self.children.values())

    @property
    def uses_borrowed_kv(self) -> bool:
        """Whether the path contains KV that was reused from another prompt."""
        return any(segment.irreplaceable for segment in self.lineage())

    def continues_as(self, child: Segment) -> bool:
        """Whether nothing but tokens tells this segment from ``child``, so that the two can be joined."""
        plain = (
            self.resident and not (self.handles or self.kv.per_head or child.kv.per_head) and self.importance is None
        )
        owners = [(s.kv.payer, s.irreplaceable, s.pins, s.prompts) for s in (self, child)]
        alike = owners[0] == owners[1] and (self.kv.exact or not child.kv.exact_tokens)
        return plain and alike and len(self.children) == 1

    # -- KV ----------------------------------------------------------------------------------------------------------

    @property
    def resident(self) -> bool:
        """Whether the path can be continued without computing KV of this segment. Compression may have dropped some of it."""
        return self.kv.computed == len(self.tokens)

    @property
    def whole(self) -> bool:
        """Whether the KV of all tokens is present and exact."""
        return self.resident and self.kv.exact and self.kv.present is None

    def read(self, first: int, stop: int) -> tuple[list[int], list[int]]:
        """Slots and positions of the present tokens from position ``first`` to ``stop``."""
        kv, part = self.kv, self.kv.within(first - self.start, stop - self.start)
        slots = kv.slots[part]
        if kv.present is None:
            return slots, list(range(self.start + part.start, self.start + part.start + len(slots)))
        return slots, [self.start + token for token in kv.present[part]]

    def is_leaf(self) -> bool:
        """Whether no segment below holds KV."""
        while self.stored_children:
            child = next(iter(self.stored_children))
            if child.kv.computed:
                return False
            del self.stored_children[child]
        return True
