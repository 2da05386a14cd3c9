"""Independent measurements in separate processes: one for each core, with one thread each."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

R = TypeVar("R")


class Workers:
    """Processes that run measurements in parallel."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def each(self, measure: Callable[..., R], arguments: Iterable[tuple[Any, ...]]) -> list[R]:
        """``measure`` for every tuple of arguments, in order."""
        return [future.result() for future in [self._pool.submit(measure, *each) for each in arguments]]


@contextmanager
def workers() -> Iterator[Workers]:
    """Context of a pool of processes."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), spawn, torch.set_num_threads, (1,)) as pool:
        yield Workers(pool)
