"""A search watched from outside: its events one by one, and its result at the end."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

from rksc_tot.api.sync import PULSE, LoopThread
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
    Leaving the loop early cancels the search; ``result`` is then the best so far.
    """

    def __iter__(self) -> Iterator[Event]:
        events: queue.Queue[Event | None] = queue.Queue(maxsize=1)
        got: list[Event | None] = []
        failure: list[BaseException] = []

        def put(event: Event | None) -> None:
            while not thread.ending.is_set():
                with suppress(queue.Full):
                    return events.put(event, timeout=PULSE)
            raise asyncio.CancelledError

        def get(seconds: float) -> bool:
            with suppress(queue.Empty):
                got.append(events.get(timeout=seconds))
            return bool(got)

        async def search() -> None:
            try:
                await self._search(put)
            except BaseException as error:  # a SystemExit in a task would end the loop
                failure.append(error)
            with suppress(asyncio.CancelledError):
                put(None)

        async def begin() -> asyncio.Task[None]:
            return asyncio.ensure_future(search())

        async def stop() -> None:
            running.cancel()
            await asyncio.wait({running})

        with LoopThread("rksc_tot.stream", stop) as thread:
            running = thread.wait(begin())
            while True:
                thread.until(get)
                if (event := got.pop()) is None:
                    break
                yield event
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
