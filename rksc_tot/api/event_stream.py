"""Streams of the events of one search, with its result at the end."""

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
    """Base of both streams.

    Parameters
    ----------
    start : callable
        Takes a callback for events and returns the coroutine of the search.
    """

    _hint = "read its events to the end first"

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
        """The result, or the best so far if the loop was left early. Raises ConfigError before the search has ended."""
        if self._result is None:
            raise ConfigError("the stream has no result yet", hint=self._hint)
        return self._result


class EventStream(_Run[R]):
    """Events of one search for a plain ``for`` loop.

    The search runs in a thread and waits for the loop after each event, so the tree does not change during the body of the
    loop. Leaving the loop early cancels the search; ``result`` is then the best result so far.
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
            except BaseException as error:  # including SystemExit, which would end the event loop
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
    """Events of one search for an ``async for`` loop.

    Leaving the loop early cancels the search. After ``await run.aclose()``, ``result`` is the best result so far.
    """

    _hint = "read its events to the end first, or await its aclose()"
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
        """Cancel the search and wait until it has ended. A second call does nothing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
