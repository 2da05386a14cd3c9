"""``@verifier``: makes a verifier of a Python function of (problem, path), or of (problem, paths) with ``batch=True``.

::

    @verifier
    def close_to_24(problem, path):
        return -abs(24 - max(path.state or problem))

    @verifier(timeout=5, attempts=3, concurrency=8)
    async def judged(problem, path):
        return await ask_my_service(problem, path.text)

    @verifier(batch=True)
    def short(problem, paths):
        return [-len(path.text) for path in paths]
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Literal, overload

from pydantic import Field

from rksc_tot.core.errors import VerifierError
from rksc_tot.core.plugins.bounded_call import BoundedCall, is_async
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, shown
from rksc_tot.core.tree import Node
from rksc_tot.search import Search
from rksc_tot.search.scoring import Score
from rksc_tot.verifiers.base import PathView, Verifier

Function = Callable[[Any, Any], Any]


class FunctionVerifier(Verifier):
    """Scores nodes with a function.

    If the function raises or does not return in time, the node is pruned and the search goes on. If it fails on every node,
    VerifierError is raised. A return value that is neither a finite number nor a bool always raises VerifierError.

    Parameters
    ----------
    function : callable
        A plain or async function. It gets the problem and a :class:`~rksc_tot.verifiers.base.PathView`: the path, with the
        state and the log-probabilities of each thought. A plain one runs in a daemon thread, so a function that hangs delays
        neither other nodes nor the end of the program.
    batch : bool
        Whether the function gets a list of all paths that are scored in one call, and returns a score for each: a list, an array
        or a tensor. Timeout and attempts then apply to the whole batch; if it fails, all its nodes are pruned.
    timeout : float or None
        Seconds for each attempt. None: no limit; a plain function is then called in the event loop, which is fastest.
    attempts : int
        Most attempts for each node.
    wait : float
        Seconds before the second attempt, doubled before each further one.
    concurrency : int or None
        Number of calls at the same time. None: 1 for a plain function, which then need not be thread-safe; 16 for an async one.
    on_error : {"prune", "raise"}
        Whether a node that could not be verified is pruned, or ends the search.
    """

    function: Function
    batch: bool = False
    timeout: float | None = Field(30.0, gt=0)
    attempts: int = Field(1, ge=1)
    wait: float = Field(0.5, ge=0)
    concurrency: int | None = Field(None, ge=1)
    on_error: Literal["prune", "raise"] = "prune"

    def __call__(self, problem: Any, path: Any) -> Any:
        """The function itself."""
        return self.function(problem, path)

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return is_async(self.function)

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """Score all nodes: in one call with ``batch``, else one node a call."""
        gate = asyncio.Semaphore(self.concurrency or (16 if self.is_async else 1))

        async def ask(group: Sequence[Node]) -> list[Score]:
            async with gate:
                return await self._try(search, group)

        groups = [nodes] if self.batch else [[node] for node in nodes]
        scores = [score for found in await asyncio.gather(*map(ask, groups)) for score in found]
        if self.on_error == "raise":
            for score in scores:
                if isinstance(score, VerifierError):
                    raise score
        return scores

    async def _try(self, search: Search, nodes: Sequence[Node]) -> list[Score]:
        """The scores of one call, the error of the last attempt for each node, or None for each if no time is left."""
        call = BoundedCall("it", self.timeout, self.attempts, lambda: search.limits.seconds_left, self.wait)
        views: Any = [PathView.of(search, node) for node in nodes]
        given = search.problem, views if self.batch else views[0]
        try:
            value, _ = await call(self.function, lambda: given)
        except UserCodeError as raised:
            return [self.failure(node, raised, call.tries) for node in nodes]
        except TimeoutError:
            if call.late:
                return [None] * len(nodes)
            hint = f"{call.tries}; give it a longer timeout"
            return [self.failure(node, f"no score within {self.timeout:g} s", hint) for node in nodes]
        return self._each(value, len(nodes)) if self.batch else [value]

    def _each(self, value: Any, count: int) -> list[Score]:
        """The scores of a batch. Raises VerifierError if the value does not have one for each path."""
        found: list[Score] | None = None
        if not isinstance(value, str | bytes | Mapping | Set):
            with contextlib.suppress(UserCodeError), calling_user_code("it"):
                found = list(value)
        if found is None or len(found) != count:
            raise VerifierError(
                f"verifier {self.name!r} returned {shown(value)} for a batch of {count}",
                hint="return a list with a score for each path, in order",
            )
        return found


@overload
def verifier(function: Function, /) -> FunctionVerifier: ...
@overload
def verifier(
    *,
    name: str | None = None,
    batch: bool = False,
    timeout: float | None = 30.0,
    attempts: int = 1,
    wait: float = 0.5,
    concurrency: int | None = None,
    on_error: Literal["prune", "raise"] = "prune",
) -> Callable[[Function], FunctionVerifier]: ...
def verifier(
    function: Function | None = None, /, *, name: str | None = None, **options: Any
) -> FunctionVerifier | Callable[[Function], FunctionVerifier]:
    """Make a verifier of a function of (problem, path) that returns a number (higher is better), True or False.

    With ``batch=True``, of a function of (problem, paths) that returns one for each path.

    Use it bare or with options: the fields of :class:`FunctionVerifier`. The default ``name`` is that of the function.
    """

    def made(function: Function) -> FunctionVerifier:
        named = name or getattr(function, "__name__", type(function).__name__)
        return FunctionVerifier(name=named, function=function, **options)

    return made if function is None else made(function)
