"""Handles: a search's references to paths in the engine."""

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
    """A token path. Its KV is resident, or is computed again when the path is visited.

    Attributes
    ----------
    thread
        The engine thread of the engine that made this handle.
    length
        Tokens from the start of the prompt.
    messages
        The chat messages of the prompt; None: plain text.
    prompt_end
        Number of tokens of the prompt.
    start
        Number of tokens of the path that this one was extended from; 0 for a prompt.
    place
        The segment of the prefix tree that ends the path. None until the engine thread has added the path.
    prompt
        Whether the path is the prompt of an open search.
    released
        Whether the handle was released.
    states
        Hidden states ``[L, H]`` of the row that predicts the end of a thought, if generated with ``states``; else None.
    """

    __slots__ = ("length", "messages", "place", "prompt", "prompt_end", "released", "start", "states", "thread")

    def __init__(
        self,
        thread: EngineThread,
        length: int,
        messages: Sequence[Message] | None,
        prompt_end: int,
        *,
        place: Segment | None = None,
        prompt: bool = False,
        start: int = 0,
        states: Tensor | None = None,
    ) -> None:
        self.thread = thread
        self.length = length
        self.messages = messages
        self.prompt_end = prompt_end
        self.place = place
        self.prompt = prompt
        self.start = start
        self.released = False
        self.states = states

    @property
    def segment(self) -> Segment:
        """The segment that ends the path. Waits until the engine thread has added the path."""
        if self.place is None:
            self.thread.empty_inbox()
        return self.place  # type: ignore[return-value]  # set by the engine thread

    @property
    def tokens(self) -> list[int]:
        """All token ids of the path."""
        return [token for segment in self.segment.lineage() for token in segment.tokens]


def check_handles(handles: Sequence[Any], thread: EngineThread) -> None:
    """Raise EngineError unless all handles belong to the engine on ``thread`` and are not released."""
    for handle in handles:
        check_handle(handle, isinstance(handle, KVHandle) and handle.thread is thread)
