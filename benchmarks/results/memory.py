"""Sections on KV memory: sharing, eviction, compression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.results.tables import Figures, mark, number, parts, section, table

Found = Mapping[str, Mapping[str, Any]]

COLUMNS = ("games: reduction", "games: solved", "thoughts: reduction", "thoughts: solved")


def sharing(found: Found) -> list[str]:
    """Task × eviction policy: tokens computed again at half the peak."""
    if "memory" not in found:
        return []
    figures = found["memory"]["figures"]
    tasks = parts(figures, "copies_over_peak")
    policies = [policy for policy in parts(figures, "recomputed") if policy != "none"]

    def cell(task: str, column: str) -> str:
        if column == "copies over peak":
            return number(figures[f"copies_over_peak.{task}"], "×")
        return number(figures.get(f"recomputed_by_task.{task}.{column}"))

    return section(
        "Recorded search trees replayed through the cache: KV of per-branch copies over the peak of the shared tree, and tokens "
        "computed again with half of that peak as budget.",
        table("task", tasks, ["copies over peak", *policies], cell),
        mark(f"Budget overruns in {number(figures['operations'])} random operations:", figures["overruns"], most=0),
        f"RSBCM recomputes {number(figures['recomputed.rsbcm'])} tokens in all, lru {number(figures['recomputed.lru'])};"
        f" random eviction is about as good ({number(figures['recomputed.random'])}).",
    )


def compression(found: Found) -> list[str]:
    """Policy × search: reduction of peak KV, and change in solved puzzles."""
    if "pressure" not in found:
        return []
    figures = found["pressure"]["figures"]
    policies = ["evict_rsbcm", "arborkv", "arborkv_lossy"]
    identical = "identical" if figures["lossless_identical"] else "**not identical**"

    def cell(policy: str, column: str) -> str:
        prefix = "" if column.startswith("games") else "thoughts."
        name = "peak_reduction" if column.endswith("reduction") else "solved_delta"
        value = figures.get(f"{prefix}{name}.{policy}")
        return number(value, "×") if name == "peak_reduction" else number(value)

    return section(
        "Reduction of peak KV against full retention at equal accuracy (at most one puzzle less is solved), and the change in"
        " solved puzzles.",
        [*table("policy", policies, COLUMNS, cell), "", "![accuracy against memory](pressure.svg)"],
        mark("ArborKV:", figures.get("peak_reduction.arborkv"), least=4, unit="×"),
        "Plain leaf-first eviction reaches the same reduction and recomputes less. Path policies save almost nothing in a tree.",
        f"Lossless drafts on compressed KV, verified on full KV: the output is {identical} on"
        f" {figures['branches']} branches a policy. They save no time on one processor.",
    )


def paper_finding(found: Found) -> list[str]:
    """Policy × kept tokens: right answers on one long path."""
    if "pressure" not in found:
        return []
    figures = found["pressure"]["figures"]
    budgets = parts(figures, "curve.paths.random_attention")
    policies = ["random_attention", "random_attention_unpinned", "snapkv", "streaming"]

    def cell(policy: str, column: str) -> str:
        name = f"curve.paths.{policy}.{column.split(maxsplit=1)[0]}.solved"
        if name not in figures:
            return ""
        return f"{figures[name]:.2f} ({figures[f'{name}.low']:.2f}–{figures[f'{name}.high']:.2f})"

    return section(
        "Share of right answers on one long path of a hand-written recall model, by tokens kept besides the prompt.",
        table("policy", policies, [f"{budget} tokens" for budget in budgets], cell),
        f"Random selection with the prompt pinned is at least as good as the others {_holds(figures, budgets)}.",
        "Most policies lose a fact that is stated once.",
    )


def _holds(figures: Figures, budgets: Sequence[str]) -> str:
    """The budgets at which no other policy is better than random selection."""
    others = ("snapkv", "snapkv_kernel1", "streaming")

    def solved(policy: str, budget: str) -> float:
        return float(figures[f"curve.paths.{policy}.{budget}.solved"])

    held = [b for b in budgets if all(solved("random_attention", b) >= solved(other, b) for other in others)]
    return f"at {', '.join(held)} tokens" if held else "at no budget"


SECTIONS = (
    ("How much KV does sharing save, and what does eviction cost?", sharing),
    ("How far can KV be compressed at equal accuracy?", compression),
    ("Is random selection of KV as good as SnapKV?", paper_finding),
)
