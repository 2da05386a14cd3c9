"""Engines on one model take turns, a pass each: each finds it as it left it, and its owner has it back when one is closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class LeaseHolder(Protocol):
    """Who changes a model while it runs there."""

    def enter(self) -> None:
        """Change it."""
        ...

    def leave(self) -> None:
        """Leave it as it was found."""
        ...


class ModelLease:
    """Who has a model as he needs it now; one for each model, see :func:`lease_of`. A copy of the model has one of its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: LeaseHolder | None = None

    @contextmanager
    def turn(self, borrower: LeaseHolder | None) -> Iterator[None]:
        """The model is his, changed as he needs it; None: nobody's, as its owner left it."""
        with self._lock:
            if self._holder is not borrower:
                if self._holder is not None:
                    self._holder.leave()
                self._holder = None
                if borrower is not None:
                    borrower.enter()
                self._holder = borrower
            yield

    def give_back(self) -> None:
        """The owner has it as he left it, until the next turn."""
        with self.turn(None):
            pass

    def __reduce__(self) -> tuple[type[ModelLease], tuple[()]]:
        return ModelLease, ()


def lease_of(model: Any) -> ModelLease:
    """The loan of a model, which is an attribute of it."""
    found: ModelLease = model.__dict__.setdefault("_rksc_tot_loan", ModelLease())
    return found
