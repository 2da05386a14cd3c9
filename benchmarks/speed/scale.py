"""Time and memory of the search itself for each node, on synthetic trees and an engine that computes nothing.

``python -m benchmarks scale [--json] [--quick]``.

* ``ms_per_node.N``: milliseconds a node in a tree of N nodes on about twelve levels, without the time of the mock engine; mark:
  at most 0.2 ms for all N
* ``bytes_per_node``: traced memory of one more node in a finished tree, between the two larger sizes, without the thoughts'
  texts, token ids and log-probabilities; mark: at most 2 KB
* ``kept_bytes_per_node``: the same with thoughts of 17 tokens, as for a caller who keeps results
* ``problems.rss_mib.N``: resident memory of the process after N small problems, 32 at a time by ``solve_many``, without keeping
  results
* ``problems.rss_growth_mib``: its growth between the two values of N
* ``engine.rss_growth_mib.N``: growth of resident memory in batch N; the first batch warms up and is not counted
* ``engine.total_growth_mib``: growth in all batches except the first
* ``engine.arena_mib``: size of the arena at the end
* ``engine.peak_kv_mib``: peak of resident KV
* ``engine.arena_over_peak``: arena over peak

``engine.``: the real engine and the embedded model, 300 searches of four puzzles, in batches by ``solve_many`` on one engine with
a KV budget of 4 MiB.
"""

from __future__ import annotations

import gc
import random
import resource
import statistics
import sys
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.common.report import Quick, Report
from rksc_tot import load_engine, solve_many
from rksc_tot.api.result import Result
from rksc_tot.api.solve import solve
from rksc_tot.core.budget import Budget
from rksc_tot.core.task import Task, function_task
from rksc_tot.core.tree import ReasoningTree
from rksc_tot.engine.base import Account, Completion, GenerateRequest
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.strategies import BFS
from rksc_tot.verifiers import RandomScores

DEPTH, K = 10, 10
CONCURRENCY = 32
MIB = 1 << 20
REPEATS = 3
PUZZLES = ("4 5 6 10", "1 2 3 4", "2 5 8 11", "3 3 8 8")
KV_BUDGET = 4 * MIB


class TimedEngine(MockEngine):
    """A mock engine that measures its own time."""

    seconds = 0.0

    async def generate(self, requests: Sequence[GenerateRequest], account: Account) -> list[list[Completion]]:
        start = time.perf_counter()
        try:
            return await super().generate(requests, account)
        finally:
            self.seconds += time.perf_counter() - start


def synthetic() -> Task:
    """A task whose thoughts are never rejected, merged or complete. Only the budget ends a search."""
    return function_task(
        prompt=lambda problem: f"{problem}\n", is_solution=lambda problem, path: False, max_thoughts=1000
    )


def write(text: str, rng: random.Random) -> str:
    """A thought that differs from its siblings."""
    return f"{rng.getrandbits(64):016x}\n"


def grown(nodes: int, engine: MockEngine) -> Result:
    """One search with exactly ``nodes`` nodes besides the root, on about :data:`DEPTH` levels."""
    strategy = BFS(b=nodes // (DEPTH * K), k=K)
    return solve(
        synthetic(), nodes, engine=engine, strategy=strategy, verifier=RandomScores(), budget=Budget(nodes=nodes)
    )


def milliseconds_a_node(nodes: int) -> float:
    """Time of one search without its engine, over its nodes."""
    engine = TimedEngine(write)
    gc.collect()
    start = time.perf_counter()
    result = grown(nodes, engine)
    return 1000 * (time.perf_counter() - start - engine.seconds) / result.ledger.nodes


def kept_bytes(nodes: int) -> tuple[int, int]:
    """Traced memory of a finished tree, and the part of the thoughts."""
    gc.collect()
    tracemalloc.start()
    try:
        tree = grown(nodes, MockEngine(write)).tree
        gc.collect()
        return tracemalloc.get_traced_memory()[0], thought_bytes(tree)
    finally:
        tracemalloc.stop()


def thought_bytes(tree: ReasoningTree) -> int:
    """Size of the texts, token ids and log-probabilities; an object that many nodes share counts once."""
    found: dict[int, object] = {}
    for node in tree:
        found |= {id(part): part for part in (node.text, node.tokens, node.logprobs, *node.tokens, *node.logprobs)}
    return sum(map(sys.getsizeof, found.values()))


def resident_mib() -> float:
    """Resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / MIB


def resident_after(marks: Sequence[int]) -> Iterator[float]:
    """Resident memory in MiB after the numbers of problems in ``marks``."""
    outcomes = solve_many(
        synthetic(), map(str, range(marks[-1])), engine=MockEngine(write), concurrency=CONCURRENCY,
        strategy=BFS(b=2, k=3), verifier=RandomScores(), budget=Budget(nodes=20),
    )  # fmt: skip
    for done, outcome in enumerate(outcomes, 1):
        if outcome.result is None or len(outcome.result.tree) != 21:
            raise RuntimeError(f"problem {outcome.id} was not searched: {outcome.failure}")
        if done in marks:
            yield resident_mib()


def engine_memory(batches: int, searches: int) -> dict[str, Any]:
    """Memory of one engine over ``batches`` batches of ``searches`` searches."""
    resident = []
    with load_engine(kv_budget=KV_BUDGET) as engine:
        for _ in range(batches):
            outcomes = solve_many(
                "game24", (PUZZLES[n % len(PUZZLES)] for n in range(searches)), engine=engine, concurrency=8,
                strategy=BFS(b=5, k=8),
            )  # fmt: skip
            for outcome in outcomes:
                if outcome.result is None:
                    raise RuntimeError(f"problem {outcome.id} was not searched: {outcome.failure}")
            gc.collect()
            resident.append(resident_mib())
        arena = engine.forward.arena
        held, peak = (
            arena.rows * arena.bytes_per_row / MIB,
            engine.cache.residency.pool.peak * arena.bytes_per_row / MIB,
        )
    return {
        "searches": batches * searches,
        "rss_growth_mib": {str(n): round(b - a, 1) for n, (a, b) in enumerate(pairwise(resident), 2)},
        "total_growth_mib": round(resident[-1] - resident[0], 1),
        "arena_mib": round(held, 2),
        "peak_kv_mib": round(peak, 2),
        "arena_over_peak": round(held / peak, 2),
    }


def measure(quick: bool) -> dict[str, Any]:
    """All figures; times are medians of interleaved runs."""
    engine = engine_memory(*((2, 4) if quick else (6, 50)))
    sizes = (1000, 10_000) if quick else (1000, 10_000, 100_000)
    marks = (100, 1000) if quick else (1000, 10_000)
    milliseconds_a_node(100)  # imports and caches
    times = [[milliseconds_a_node(nodes) for nodes in sizes] for _ in range(1 if quick else REPEATS)]
    kept_bytes(100)
    (few, few_thoughts), (many, many_thoughts) = map(kept_bytes, sizes[-2:])
    nodes = sizes[-1] - sizes[-2]
    resident = list(resident_after(marks))
    return {
        "ms_per_node": {
            str(nodes): round(statistics.median(column), 4)
            for nodes, column in zip(sizes, zip(*times, strict=True), strict=True)
        },
        "bytes_per_node": round((many - few - many_thoughts + few_thoughts) / nodes),
        "kept_bytes_per_node": round((many - few) / nodes),
        "problems": {
            "rss_mib": {str(mark): round(found, 1) for mark, found in zip(marks, resident, strict=True)},
            "rss_growth_mib": round(resident[-1] - resident[0], 1),
        },
        "engine": engine,
    }


def main(quick: Quick = False) -> Report:
    """Measure trees of every size."""
    return Report(measure(quick))
