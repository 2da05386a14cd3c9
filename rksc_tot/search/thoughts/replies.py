"""Engine calls whose requests the engine may refuse one by one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from rksc_tot.core.errors import ConstraintError, ContextOverflow
from rksc_tot.engine.base import Account, Completion, Engine, GenerateRequest

Refusal = ContextOverflow | ConstraintError
Send = Callable[[Sequence[GenerateRequest]], Awaitable[list[list[Completion] | Refusal]]]


async def send(
    engine: Engine, account: Account, requests: Sequence[GenerateRequest]
) -> list[list[Completion] | Refusal]:
    """The replies to all requests. If the engine refuses one, all are sent again one by one."""
    try:
        return [*await engine.generate(requests, account)]
    except (ContextOverflow, ConstraintError) as error:
        if len(requests) == 1:
            return [error]
    return [(await send(engine, account, [request]))[0] for request in requests]
