"""Sections on real small models and on GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.results.tables import Figures, number, parts, section, table

Found = Mapping[str, Mapping[str, Any]]

CLAIM = "finding.random_pinned_at_least_snapkv_and_streaming"


def _models(found: Found, name: str) -> dict[str, Figures]:
    prefix = f"{name}-"
    return {run.removeprefix(prefix): found[run]["figures"] for run in found if run.startswith(prefix)}


def compression(found: Found) -> list[str]:
    """Policy × kept tokens: KL of the next token on long texts."""
    lines: list[str] = []
    for model, figures in _models(found, "pressure").items():
        lines += _compression(model, figures)
    return lines


def _compression(model: str, figures: Figures) -> list[str]:
    policies = ["random_attention", "random_attention_unpinned", "snapkv", "streaming"]
    columns = [f"{budget} tokens" for budget in parts(figures, "snapkv")]
    return section(
        f"{model}, {figures['texts']} texts of {number(figures['mean_tokens'])} tokens: KL of the next token between full and"
        " compressed KV.",
        table(
            "policy",
            policies,
            columns,
            lambda row, column: number(figures.get(f"{row}.{column.split()[0]}.kl"), " nats"),
        ),
        f"Claim that random selection is at least as good as SnapKV and StreamingLLM: {figures[CLAIM]}.",
        f"Claim that it is worse without the pinned prompt: {figures['finding.further_off_without_the_pin']}.",
    )


def prompt_reuse(found: Found) -> list[str]:
    """Model × figure: KV reused by prompt variants."""
    models = _models(found, "prompt_reuse")
    if not models:
        return []
    columns = {"reuse": "reuse_asks", "exact reuse (shared prefix)": "reuse_exact", "same likeliest token": "top1_agreement",
               "KL, nats": "kl"}  # fmt: skip
    misses = [
        name for name, figures in models.items() if figures["reuse_asks"] < 0.6 or figures["top1_agreement"] < 0.99
    ]
    verdict = f"Missed on {', '.join(misses)}" if misses else "Met on every model"
    return section(
        "Word problems in eight prompt variants. A variant reuses KV of the prompt if a gate accepts it.",
        table("model", list(models), list(columns), lambda row, column: number(models[row].get(columns[column]))),
        f"Mark: at least 60 % reuse at 99 % agreement. {verdict}. Audits measure the error; there is no guarantee.",
    )


def on_gpus(found: Found) -> list[str]:
    """Run × figure: figures that ``benchmarks/gpu.sh`` measured on a GPU."""
    runs = {name.removeprefix("gpu-"): run for name, run in found.items() if name.startswith("gpu-")}
    if not runs:
        return []

    def cell(name: str, column: str) -> str:
        run = runs[name]
        if column == "card":
            return str(run["environment"].get("card", ""))
        shown = [f"{key} {number(value)}" for key, value in run["figures"].items() if isinstance(value, int | float)]
        return ", ".join(shown[:4])

    return section("The first figures of each run; all figures are in the JSON files.",
                   table("run", list(runs), ["card", "figures"], cell))  # fmt: skip


SECTIONS = (
    ("Is random selection as good on a real model?", compression),
    ("How much KV can prompt variants reuse?", prompt_reuse),
    ("What was measured on a GPU?", on_gpus),
)
