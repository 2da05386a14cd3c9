"""What a search holds of a path in the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rksc_tot.cache.prefix_tree import Segment
from rksc_tot.core.task import Message

if TYPE_CHECKING:
    from torch import Tensor

    from rksc_tot.engine.transformers_engine.engine import TransformersEngine


class KVHandle:
    """A token path. Its KV is resident, or computed again when the path is visited.

    ``length``: tokens from the start of the prompt; ``prompt_end``: those of the prompt. ``prompt``: whether a search is open on
    it. ``place``: where it stands in the prefix tree, None until the engine gets to it.
    """

    __slots__ = ("length", "messages", "owner", "place", "prompt", "prompt_end", "released", "states")

    def __init__(
        self,
        owner: TransformersEngine,
        length: int,
        messages: Sequence[Message] | None,
        prompt_end: int,
        *,
        place: Segment | None = None,
        prompt: bool = False,
        states: Tensor | None = None,
    ) -> None:
        self.owner = owner
        self.length = length
        self.messages = messages
        self.prompt_end = prompt_end
        self.place = place
        self.prompt = prompt
        self.released = False
        self.states = states  # [L, H] of the row that predicts the end of a thought generated with ``states``

    @property
    def segment(self) -> Segment:
        """The segment at whose end it stands."""
        if self.place is None:
            self.owner.settle()
        return self.place  # type: ignore[return-value]  # settled

    @property
    def tokens(self) -> list[int]:
        """All token ids of the path."""
        return [token for segment in self.segment.lineage() for token in segment.tokens]
