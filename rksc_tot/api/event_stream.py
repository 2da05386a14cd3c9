"""A search watched from outside: its events one by one, and its result at the end."""

from __future__ import annotations

import asyncio
import atexit
import math
import queue
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

from rksc_tot.api.sync import AT_EXIT, run_async
from rksc_tot.core.budget import BudgetReached
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.events import Event

R = TypeVar("R")
Start = Callable[[Callable[[Event], None]], Coroutine[Any, Any, R]]


class _Run(Generic[R]):
    """What both kinds of stream share.

    Parameters
    ----------
    start : callable
        Given the callback for events, the coroutine that searches.
    """

    _hint = "take its events to the end first"

    def __init__(self, start: Start[R]) -> None:
        self._start = start
        self._result: R | None = None

    async def _search(self, on_event: Callable[[Event], None]) -> None:
        try:
            self._result = await self._start(on_event)
        except BaseException as error:
            self._result = getattr(error, "result", None)
            raise

    @property
    def result(self) -> R:
        """What the search found, the best so far if it was left early. Raises ConfigError while it has not ended."""
        if self._result is None:
            raise ConfigError("the stream has no result yet", hint=self._hint)
        return self._result


class EventStream(_Run[R]):
    """Events of one search in a plain ``for`` loop.

    The search works in a thread and waits for the loop, so that each event can be looked at while the tree stands still.
    Leaving the loop early stops the search at its next event; ``result`` is then the best so far.
    """

    def __iter__(self) -> Iterator[Event]:
        events: queue.Queue[Event | None] = queue.Queue(maxsize=1)
        left = threading.Event()
        failure: list[BaseException] = []

        def on_event(event: Event) -> None:
            if not left.is_set():
                events.put(event)
            if left.is_set():
                raise BudgetReached("nobody watches the stream any more")

        def search() -> None:
            try:
                run_async(self._search(on_event))
            except BaseException as error:
                failure.append(error)
            finally:
                events.put(None)

        thread = threading.Thread(target=search, name="rksc_tot.stream", daemon=True)

        def leave(patience: float = math.inf) -> None:
            left.set()
            until = time.monotonic() + patience
            while thread.is_alive() and not sys.is_finalizing() and time.monotonic() < until:
                with suppress(queue.Empty):  # the search may be waiting for room
                    events.get_nowait()
                thread.join(0.01)

        thread.start()
        atexit.register(leave, AT_EXIT)  # a daemon thread stands still after that, and nobody could wait for it
        try:
            while (event := events.get()) is not None:
                yield event
        finally:
            atexit.unregister(leave)
            leave()
        if failure:
            raise failure[0]


class AsyncEventStream(_Run[R]):
    """Events of one search in an ``async for`` loop.

    Leaving the loop early cancels the search; once ``await run.aclose()`` has seen it end, ``result`` is the best so far.
    """

    _hint = "take its events to the end first, or await its aclose()"
    _task: asyncio.Task[None] | None = None

    async def __aiter__(self) -> AsyncIterator[Event]:
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        search = self._task = asyncio.ensure_future(self._search(events.put_nowait))
        search.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
        finally:
            search.cancel()
            await asyncio.wait({search})
        search.result()

    async def aclose(self) -> None:
        """Cancel the search, and wait until it has ended; a second time is no error."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
