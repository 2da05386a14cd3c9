"""Calls user code that may raise, hang or fail now and then: with a time limit, several attempts, and a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt

from rksc_tot.core.plugins.user_code import UserCodeError, awaiting_user_code, calling_user_code

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class BoundedCall:
    """How a plain or async function is called: in an asyncio task of its own, so that it cannot cancel that of its caller.

    A plain function runs in a daemon thread, so that one that hangs delays neither other calls nor the end of the program.

    * ``what``: the name of the function in messages.
    * ``timeout``: seconds of each attempt. None: no limit; without a deadline, a plain function is then called in the event
      loop, which is fastest.
    * ``attempts``: most attempts. ``wait``: seconds before the second one, doubled before each further one.
    * ``seconds_left``: returns the seconds until the deadline, None without one.
    """

    what: str
    timeout: float | None
    attempts: int
    seconds_left: Callable[[], float | None]
    wait: float = 0.5

    async def __call__(self, function: Callable[..., Any], arguments: Callable[[], Arguments]) -> tuple[Any, Arguments]:
        """Call a function. ``arguments``: makes its arguments for each attempt.

        Returns
        -------
        tuple
            The value, and the arguments of the attempt that returned it.

        Raises
        ------
        UserCodeError
            If the last attempt raised.
        TimeoutError
            If the last attempt ran out of time, or :attr:`late`.
        """
        if self.late:
            raise TimeoutError
        retrying = AsyncRetrying(
            stop=lambda state: stop_after_attempt(self.attempts)(state) or self.late,
            retry=retry_if_exception_type((UserCodeError, TimeoutError)),
            wait=self._pause,
            reraise=True,
        )
        found: tuple[Any, Arguments] = await retrying(self._attempt, function, arguments)
        return found

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        left = self.seconds_left()
        return left is not None and left <= 0

    @property
    def tries(self) -> str:
        """How often a failed call was tried, in words."""
        return f"tried {'once' if self.attempts == 1 else f'{self.attempts} times'}"

    def _pause(self, state: RetryCallState) -> float:
        left = self.seconds_left()
        wanted: float = self.wait * 2 ** (state.attempt_number - 1)
        return wanted if left is None else max(0.0, min(wanted, left))

    async def _attempt(self, function: Callable[..., Any], make: Callable[[], Arguments]) -> tuple[Any, Arguments]:
        arguments = make()
        limits = [max(0.0, seconds) for seconds in (self.timeout, self.seconds_left()) if seconds is not None]
        threaded = bool(limits) and not is_async(function)
        call = asyncio.ensure_future(self._call(function, arguments, threaded=threaded))
        call.add_done_callback(
            lambda call: call.cancelled() or call.exception()
        )  # ignore the error of an abandoned call
        try:
            await asyncio.wait({call}, timeout=min(limits, default=None))
            if not call.done():
                raise TimeoutError
            if call.cancelled():  # by the function itself
                raise UserCodeError(self.what, asyncio.CancelledError())
            return call.result(), arguments
        finally:
            call.cancel()

    async def _call(self, function: Callable[..., Any], arguments: Arguments, *, threaded: bool) -> Any:
        if self.late:  # the call may have waited for a blocking one
            raise TimeoutError
        with awaiting_user_code(self.what, UserCodeError):
            value = await self._in_thread(function, arguments) if threaded else function(*arguments)
            return await value if inspect.isawaitable(value) else value

    def _in_thread(self, function: Callable[..., Any], arguments: Arguments) -> asyncio.Future[Any]:
        """Call a function in a new daemon thread. A thread pool would delay the end of the program."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(value: Any, raised: UserCodeError | None) -> None:
            if future.done():
                return
            if raised is None:
                future.set_result(value)
            else:
                future.set_exception(raised)

        def work() -> None:
            value, raised = None, None
            try:
                with calling_user_code(self.what):
                    value = function(*arguments)
            except UserCodeError as error:
                raised = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, value, raised)

        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(work,), name=f"rksc_tot.{self.what}", daemon=True).start()
        return future


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a function, or the ``__call__`` of an object, is a coroutine function."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - not whether it is callable, but how
    )
