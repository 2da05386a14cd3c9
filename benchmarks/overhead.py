"""What the search itself costs a node, on a synthetic tree and an engine that computes nothing.

``python -m benchmarks.overhead [--json] [--quick]``: milliseconds a node for trees of 1,000 and 10,000 nodes. The time the
mock engine takes is measured on its own and taken off. To be below 0.2 ms, and the same for both sizes.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.report import Options, run
from rksc_tot.budget import Budget
from rksc_tot.engine.base import Account, Completion, GenerateRequest
from rksc_tot.engine.mock import MockEngine
from rksc_tot.solve import solve
from rksc_tot.strategies import BFS
from rksc_tot.task import Task, function_task
from rksc_tot.verifiers import Random


class TimedEngine(MockEngine):
    """A mock engine that knows how long it worked."""

    seconds = 0.0

    async def generate(self, requests: Sequence[GenerateRequest], account: Account) -> list[list[Completion]]:
        start = time.perf_counter()
        try:
            return await super().generate(requests, account)
        finally:
            self.seconds += time.perf_counter() - start


def synthetic() -> Task:
    """Thoughts that are never rejected, merged or complete: only the budget ends the search."""
    return function_task(
        prompt=lambda problem: f"{problem}\n", is_solution=lambda problem, path: False, max_thoughts=1000
    )


def write(text: str, rng: random.Random) -> str:
    """A thought no sibling has."""
    return f"{rng.getrandbits(64):x}\n"


def milliseconds_a_node(nodes: int, depth: int = 10, k: int = 10) -> float:
    """Own time of one search with exactly ``nodes`` nodes in about ``depth`` levels, over its nodes."""
    engine = TimedEngine(write)
    strategy = BFS(b=nodes // (depth * k), k=k)
    start = time.perf_counter()
    result = solve(synthetic(), nodes, engine=engine, strategy=strategy, verifier=Random(), budget=Budget(nodes=nodes))
    return 1000 * (time.perf_counter() - start - engine.seconds) / result.ledger.nodes


def measure(options: Options) -> dict[str, Any]:
    """Median of five runs (of one, if quick) for each size."""
    milliseconds_a_node(100)  # imports and caches
    repeats = 1 if options.quick else 5
    sizes = (1000, 10_000)
    return {
        "ms_per_node": {
            str(nodes): round(statistics.median(milliseconds_a_node(nodes) for _ in range(repeats)), 4)
            for nodes in sizes
        }
    }


if __name__ == "__main__":
    run("overhead", measure)
