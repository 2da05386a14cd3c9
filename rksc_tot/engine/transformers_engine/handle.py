"""A search's hold on a path in the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rksc_tot.cache.prefix_tree import Segment
from rksc_tot.core.task import Message
from rksc_tot.engine.base import check_handle
from rksc_tot.engine.scheduler.engine_thread import EngineThread

if TYPE_CHECKING:
    from torch import Tensor


class KVHandle:
    """A token path. Its KV is resident, or computed again when the path is visited.

    Attributes
    ----------
    thread
        The thread of the engine that gave this handle out.
    length
        Tokens from the start of the prompt.
    messages
        The chat messages that the prompt was made of; None: it was plain text.
    prompt_end
        Tokens of the prompt.
    place
        The segment of the prefix tree that ends where the path ends. None until the engine thread has put the path there.
    prompt
        Whether this is the prompt of an open search.
    released
        Whether the handle was given back.
    states
        ``[layers, hidden]`` of the row that predicts the end of a thought, where the thought was generated with ``states``.
    """

    __slots__ = ("length", "messages", "place", "prompt", "prompt_end", "released", "states", "thread")

    def __init__(
        self,
        thread: EngineThread,
        length: int,
        messages: Sequence[Message] | None,
        prompt_end: int,
        *,
        place: Segment | None = None,
        prompt: bool = False,
        states: Tensor | None = None,
    ) -> None:
        self.thread = thread
        self.length = length
        self.messages = messages
        self.prompt_end = prompt_end
        self.place = place
        self.prompt = prompt
        self.released = False
        self.states = states

    @property
    def segment(self) -> Segment:
        """The segment that ends where the path ends; waits for the engine thread if need be."""
        if self.place is None:
            self.thread.empty_inbox()
        return self.place  # type: ignore[return-value]  # settled

    @property
    def tokens(self) -> list[int]:
        """All token ids of the path."""
        return [token for segment in self.segment.lineage() for token in segment.tokens]


def check_handles(handles: Sequence[Any], thread: EngineThread) -> None:
    """Raise EngineError unless all of these are unreleased handles of the engine that runs on ``thread``."""
    for handle in handles:
        check_handle(handle, isinstance(handle, KVHandle) and handle.thread is thread)
