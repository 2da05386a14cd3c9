"""Problems from any source, read one by one: a source that makes its reader wait keeps nobody else waiting."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from contextvars import copy_context
from typing import Any

_END = object()
Answer = tuple[Any, BaseException | None]


class InThread:
    """An iterable as an async iterator: it is read in a daemon thread of its own, an item each time one is asked for.

    Whatever the iterable raises is raised by ``anext``. Once there is an end, an error or :meth:`close`, the thread ends; one
    that is inside the iterable at the time ends when that comes back.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items
        self._asked: queue.SimpleQueue[asyncio.Future[Answer] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=copy_context().run, args=(self._read,), name="rksc_tot.problems", daemon=True).start()

    def __aiter__(self) -> InThread:
        return self

    async def __anext__(self) -> Any:
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._asked.put(answer)
        item, error = await answer
        if error is not None:
            raise error
        if item is _END:
            raise StopAsyncIteration
        return item

    def close(self) -> None:
        """Ask for no more."""
        self._asked.put(None)

    def _read(self) -> None:
        items: Iterator[Any] | None = None
        while (asked := self._asked.get()) is not None:
            answer: Answer
            try:
                items = iter(self._items) if items is None else items
                answer = next(items, _END), None
            except BaseException as error:  # SystemExit, too, is for the one who asked
                answer = _END, error
            with suppress(RuntimeError):  # the loop was closed in the meantime
                self._loop.call_soon_threadsafe(_settle, asked, answer)


def _settle(asked: asyncio.Future[Answer], answer: Answer) -> None:
    if not asked.done():
        asked.set_result(answer)
