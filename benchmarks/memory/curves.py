"""Accuracy and memory of searches: the same problems under full retention and under settings that hold less KV.

Searches run one after the other, each with an empty cache, so all resident KV belongs to one search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.common.workers import Workers
from benchmarks.memory import thoughts as pressure_thoughts
from rksc_tot import RKSC, load_engine, solve
from rksc_tot.core.errors import CacheError
from rksc_tot.engine.transformers_engine.engine import TransformersEngine
from rksc_tot.evaluation.intervals import wilson
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.base import CompressionPolicy, PathPolicy
from rksc_tot.policies.compression.random_attention import RandomAttention
from rksc_tot.policies.compression.snapkv import SnapKV
from rksc_tot.policies.compression.streaming_llm import Streaming

PATH: tuple[type[PathPolicy], ...] = (RandomAttention, SnapKV, Streaming)
TREE: dict[str, CompressionPolicy] = {
    "arborkv": ArborKV(),
    "arborkv_lossy": ArborKV(rehydrate=False),
    "arborkv_lossy_tail2": ArborKV(rehydrate=False, tail=2),
}
WITHIN = 1  # tolerated loss of solved problems, for each seed
ROOM = 1 << 14  # tokens: several times what a search needs


@dataclass(frozen=True)
class Setting:
    """A setting for KV. ``tokens``: size of the KV budget; None: more than any search needs (:data:`ROOM`)."""

    name: str
    level: str = ""
    compression: CompressionPolicy | None = None
    eviction: str = "rsbcm"
    tokens: int | None = None

    @property
    def key(self) -> str:
        """The name of the setting in figures."""
        return f"{self.name}.{self.level}" if self.level else self.name


class SearchRun(NamedTuple):
    """One search: whether it is right, peak of resident tokens, rows computed again, nodes, nodes that are not exact, its end."""

    right: bool
    peak: int
    recomputed: int
    nodes: int
    inexact: int
    finished: bool


class Curves:
    """All settings on some problems, with one search for each seed. ``suite``: games or thoughts."""

    def __init__(self, suite: str, problems: Sequence[str], seeds: int = 1) -> None:
        self.suite = suite
        self.problems = problems
        self.seeds = range(seeds)
        self.found: dict[Setting, list[SearchRun]] = {}

    @property
    def full(self) -> list[SearchRun]:
        """The searches under full retention."""
        return self.found[FULL]

    @property
    def peak(self) -> float:
        """Peak of resident tokens under full retention, as mean over searches."""
        return fmean(search.peak for search in self.full)

    def figures(self) -> dict[str, Any]:
        """The curve, and the saving of each policy at equal accuracy."""
        best = {setting.name: self._best(setting.name) for setting in self.found if setting != FULL}
        points = {f"curve.{self.suite}.{setting.key}": self._point(found) for setting, found in self.found.items()}
        saved = {
            what: {name: found[what] for name, found in best.items()} for what in ("peak_reduction", "solved_delta")
        }
        return (
            (saved if self.suite == "games" else {self.suite: saved})
            | {f"full_tokens.{self.suite}": self.peak}
            | points
        )

    def _point(self, found: Sequence[SearchRun]) -> dict[str, Any]:
        solved = sum(search.right for search in found)
        low, high = wilson(solved, len(found))
        return {
            "solved": round(solved / len(found), 4), "solved.low": round(low, 4), "solved.high": round(high, 4),
            "memory": round(fmean(search.peak for search in found) / self.peak, 4),
            "recomputed": round(fmean(search.recomputed for search in found), 1),
            "inexact": round(sum(search.inexact for search in found) / max(1, sum(search.nodes for search in found)), 4),
            "unfinished": sum(not search.finished for search in found),
        }  # fmt: skip

    def _best(self, name: str) -> dict[str, float]:
        """The setting of a policy with the least KV that solves at most one problem less than full retention."""
        best = {"peak_reduction": 1.0, "solved_delta": 0.0}
        for setting, found in self.found.items():
            delta = (sum(search.right for search in found) - sum(search.right for search in self.full)) / len(
                self.seeds
            )
            peak = fmean(search.peak for search in found)
            if setting.name == name and delta >= -WITHIN and self.peak / peak > best["peak_reduction"]:
                best = {"peak_reduction": round(self.peak / peak, 3), "solved_delta": round(delta, 2)}
        return best


FULL = Setting("full")


def run(wanted: Sequence[tuple[Curves, Setting]], workers: Workers) -> None:
    """Search every problem in each setting."""
    which = [(curves, setting, seed) for curves, setting in wanted for seed in curves.seeds]
    found = workers.each(searches, [(curves.suite, curves.problems, seed, setting) for curves, setting, seed in which])
    for (curves, setting, _), each in zip(which, found, strict=True):
        curves.found.setdefault(setting, []).extend(each)


def tree_settings(peak: float, shares: Mapping[str, Sequence[float]]) -> list[Setting]:
    """Settings with a KV budget of a share of the peak of full retention, by name of the policy."""
    return [
        Setting(
            name,
            f"{share:.0%}",
            TREE.get(name),
            "rsbcm" if name in TREE else name.removeprefix("evict_"),
            int(share * peak),
        )
        for name, several in shares.items()
        for share in several
    ]


def path_settings(budgets: Sequence[int], recent: int, pinned: bool = True) -> list[Setting]:
    """Settings in which a path keeps a budget of tokens besides its recent ones."""
    return [
        Setting(
            policy.name if pinned else f"{policy.name}_unpinned",
            str(budget),
            policy(budget=budget, recent=recent, pin_prompt=pinned),
        )
        for policy in PATH
        for budget in budgets
    ]


def searches(suite: str, problems: Sequence[str], seed: int, setting: Setting) -> list[SearchRun]:
    """Search every problem in one setting."""
    with open_engine(suite, setting) as engine:
        found = [search(suite, problem, seed, engine) for problem in problems]
        if setting.tokens is None and engine.cache.eviction_log.tokens:
            raise RuntimeError(
                f"{engine.cache.eviction_log.tokens} tokens were evicted, although the budget has room for all"
            )
    return found


def open_engine(suite: str, setting: Setting) -> TransformersEngine:
    """An engine on the suite's model with a setting."""
    make = load_engine if suite == "games" else pressure_thoughts.engine
    with make() as other:
        size = other.bytes_per_token
    return make(compress=setting.compression, eviction=setting.eviction, kv_budget=(setting.tokens or ROOM) * size)


def search(suite: str, problem: str, seed: int, engine: TransformersEngine) -> SearchRun:
    """Search one problem on an engine with an empty cache, without audits, since these need room."""
    engine.clear()
    pool = engine.cache.residency.pool
    pool.peak = pool.used
    how: dict[str, Any] = {"task": "game24", "strategy": "bfs"}
    if suite == "thoughts":
        how = {
            "task": pressure_thoughts.LongThoughts(), "strategy": pressure_thoughts.STRATEGY,
            "verifier": pressure_thoughts.by_chance(),
        }  # fmt: skip
    try:
        result = solve(problem=problem, engine=engine, seed=seed, rksc=RKSC(audit=0), **how)
    except CacheError:  # no room for the search
        return SearchRun(False, pool.peak, 0, 0, 0, False)
    return SearchRun(
        result.correct is True, pool.peak, result.ledger.recomputed_tokens, len(result.tree),
        sum(not node.exact for node in result.tree), result.stopped == "finished",
    )  # fmt: skip
