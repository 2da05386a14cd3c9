"""What a search holds of a path in the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rksc_tot.cache.prefix_tree import Segment
from rksc_tot.task import Message

if TYPE_CHECKING:
    from torch import Tensor

    from rksc_tot.engine.transformers_engine import TransformersEngine


class KVHandle:
    """A token path. Its KV is resident, or computed again when the path is visited."""

    __slots__ = ("messages", "owner", "prompt", "released", "segment", "states")

    def __init__(
        self,
        owner: TransformersEngine,
        segment: Segment,
        messages: Sequence[Message] | None,
        prompt: bool = False,
        states: Tensor | None = None,
    ) -> None:
        self.owner = owner
        self.segment = segment
        self.messages = messages
        self.prompt = prompt  # a search is open on it
        self.released = False
        self.states = states  # [L, H] of the row that predicts the end of a thought generated with ``states``

    @property
    def length(self) -> int:
        """Tokens from the start of the prompt."""
        return self.segment.end

    @property
    def tokens(self) -> list[int]:
        """All token ids of the path."""
        return [token for segment in self.segment.lineage() for token in segment.tokens]
