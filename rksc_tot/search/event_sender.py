"""Sends the events of a search to the caller's function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rksc_tot.core.budget import BudgetReached
from rksc_tot.core.events import Event
from rksc_tot.search.limits import Limits


class EventSender:
    """Calls a function with each event. If it raises BudgetReached, the search ends.

    Parameters
    ----------
    limits : Limits
        Of the search.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._on_event: Callable[[Event], None] | None = None

    def listen(self, on_event: Callable[[Event], None] | None) -> None:
        """Call ``on_event`` from now on; None: nothing is called."""
        self._on_event = on_event

    def send(self, kind: type[Event], **fields: Any) -> None:
        """Make an event and send it. Raises BudgetReached if the function raises it, now or before."""
        if self._on_event is None:
            return
        self._limits.check_ended()
        try:
            self._on_event(kind(**fields))
        except BudgetReached as reached:
            self._limits.end(str(reached))
