"""Sections on time: baselines, other engines, many searches, attention, depth, overhead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.results.tables import Figures, interval, mark, number, parts, section, table

Found = Mapping[str, Mapping[str, Any]]


def baselines(found: Found) -> list[str]:
    """Baseline × prompt length: time over ours."""
    if "paper" not in found:
        return []
    figures = found["paper"]["figures"]
    rows = {
        "a: nothing shared": "a_over_c",
        "b1: prompt shared, questions re-encoded": "b1_over_c",
        "b2: branches' KV reused for questions": "b2_over_c",
        "a, on torch's own linear layers": "a_over_c_stock",
        "b1, on torch's own linear layers": "b1_over_c_stock",
        "b2, on torch's own linear layers": "b2_over_c_stock",
    }
    lengths = parts(figures, "a_over_c")
    columns = [f"prompt {length}" for length in lengths]
    return section(
        "Time of plain transformers over ours (exact): 8 branches after a prompt, each verified; SmolLM2-135M shape. Texts are "
        "equal.",
        table(
            "baseline", list(rows), columns, lambda row, column: interval(figures, f"{rows[row]}.{column.split()[1]}")
        ),
        mark("At 1024 tokens, a over ours:", figures.get("a_over_c.1024"), least=8),
        mark("b1 over ours:", figures.get("b1_over_c.1024"), least=5),
        mark("b2 over ours:", figures.get("b2_over_c.1024"), least=2),
    )


def peers(found: Found) -> list[str]:
    """Engine × figure: the same search on other engines."""
    lines: list[str] = []
    for name, run in found.items():
        if name.startswith("peers-"):
            lines += _peers(name.partition("-")[2], run["figures"])
    return lines


def _peers(model: str, figures: Figures) -> list[str]:
    engines = [name.split(".")[0] for name in figures if name.endswith(".time_ratio")]
    columns = {"time over ours": "time_ratio", "prefilled tokens over ours": "prefill_ratio", "seconds": "seconds"}
    return section(
        f"The same search on {model}: time and prefilled tokens of other engines over ours.",
        table("engine", engines, list(columns), lambda row, column: interval(figures, f"{row}.{columns[column]}")),
        mark("generate:", figures.get("generate.time_ratio"), least=5, unit="×"),
        mark("Continuous batching:", figures.get("continuous_batching.time_ratio"), least=1.5, unit="×"),
        mark("vLLM on the CPU:", figures.get("vllm.time_ratio"), least=1.5, unit="×"),
        "The time of a decode step at 8 branches is that of reading the weights once, and vLLM reads them once as well.",
    )


def many(found: Found) -> list[str]:
    """Workload × concurrency: problems a second."""
    if "throughput" not in found:
        return []
    figures = found["throughput"]["figures"]
    loads = [load for load in parts(figures, "speedup_32") if load not in ("embedded_bfs", "embedded_dfs")]
    columns = {"1 at a time": "problems_per_second.{}.1", "32 at a time": "problems_per_second.{}.32",
               "speed-up": "speedup_32.{}", "equal trees": "equal_trees.{}"}  # fmt: skip
    return section(
        "Problems a second through `solve_many` on two cores.",
        table("workload", loads, list(columns), lambda row, column: number(figures.get(columns[column].format(row)))),
        mark("Embedded model:", figures.get("speedup_32.embedded"), least=6, unit="×"),
        mark("SmolLM2-135M shape:", figures.get("speedup_32.smollm2_shape"), least=2.5, unit="×"),
        "One search on the embedded model already has 40 rows a pass, so other requests add little. Single chains gain most.",
    )


def attention(found: Found) -> list[str]:
    """Prefix × branches: time of attention over copied prefixes over ours."""
    if "attention" not in found:
        return []
    figures = found["attention"]["figures"]
    sizes = [size.split("x") for size in parts(figures, "over_copy")]
    prefixes = [prefix for prefix in dict.fromkeys(prefix for prefix, _ in sizes) if prefix in ("512", "4096")]
    branches = list(dict.fromkeys(count for _, count in sizes))

    def cell(prefix: str, column: str) -> str:
        return interval(figures, f"over_copy.{prefix}x{column.split(maxsplit=1)[0]}")

    return section(
        "One decode step of attention: time with the prefix copied to every branch over ours, by prefix length.",
        table("prefix", prefixes, [f"{count} branches" for count in branches], cell),
        mark("At 4096 × 16:", figures.get("over_copy.4096x16"), least=3, unit="×"),
        mark(
            "Faster of copy and mask over ours, at the worst size:",
            figures.get("over_best_other_min"),
            least=1,
            unit="×",
        ),
        "With few branches, a copy or one masked product is faster. The engine does not switch to it.",
    )


def roofline(found: Found) -> list[str]:
    """Rows × share of the roof that decode and prefill reach."""
    if "roofline" not in found:
        return []
    figures = found["roofline"]["figures"]
    batches = parts(figures, "decode_fraction")
    worst = min(figures[f"decode_fraction.{batch}"] for batch in batches if batch != "1")
    return section(
        "Speed of a step as a share of the speed of its matrix products alone, SmolLM2-135M shape.",
        table("", ["decode"], [f"{batch} rows" for batch in batches],
               lambda _, column: interval(figures, f"decode_fraction.{column.split()[0]}")),
        mark("Decode, lowest share from 8 rows on:", worst, least=0.6),
        mark("Prefill:", figures.get("prefill_fraction"), least=0.8),
    )  # fmt: skip


def depth(found: Found) -> list[str]:
    """Depth × method: tokens computed to verify every thought of a path."""
    if "prm_depth" not in found:
        return []
    figures = found["prm_depth"]["figures"]
    depths = parts(figures, "seconds.ours")
    rows = {"tokens, KV kept": "tokens.ours", "tokens, re-encoded": "tokens.reencoded"}
    return section(
        "Tokens computed to verify every thought of a path, by depth of the path (thoughts of 16 tokens).",
        table("", list(rows), [f"depth {n}" for n in depths],
               lambda row, column: number(figures.get(f"{rows[row]}.{column.split()[1]}"))),
        mark("Growth exponent of tokens, KV kept:", figures.get("growth_exponent"), most=1.05),
        f"Re-encoded: {number(figures.get('growth_exponent_reencoded'))}.",
    )  # fmt: skip


def overhead(found: Found) -> list[str]:
    """Nodes × time of the search itself."""
    if "scale" not in found:
        return []
    figures = found["scale"]["figures"]
    sizes = parts(figures, "ms_per_node")
    return section(
        "Time of the search itself on synthetic trees, without a model.",
        table("", ["milliseconds a node"], [f"{int(size):,} nodes" for size in sizes],
              lambda _, column: number(figures[f"ms_per_node.{column.split()[0].replace(',', '')}"])),
        mark("Milliseconds a node:", max(figures[f"ms_per_node.{size}"] for size in sizes), most=0.2),
        mark("Bytes a node:", figures.get("bytes_per_node"), most=2048),
        f"Resident memory grows by {number(figures.get('problems.rss_growth_mib'))} MiB from 1,000 to 10,000 problems on the"
        " mock engine.",
        *_engine_memory(figures),
    )  # fmt: skip


def _engine_memory(figures: Figures) -> list[str]:
    if "engine.searches" not in figures:
        return []
    grown = ", ".join(number(figures[f"engine.rss_growth_mib.{n}"]) for n in parts(figures, "engine.rss_growth_mib"))
    arena, over = number(figures["engine.arena_mib"]), number(figures["engine.arena_over_peak"])
    first = f"{figures['engine.searches']} searches on one engine with a KV budget of 4 MiB"
    return [
        f"{first}: resident memory grows by {grown} MiB from batch to batch.",
        f"The arena takes {arena} MiB, {over} times the peak of resident KV.",
    ]


SECTIONS = (
    ("How much faster than plain transformers?", baselines),
    ("How fast beside other engines?", peers),
    ("What do many searches at once gain?", many),
    ("How fast is attention over a shared prefix?", attention),
    ("How near is a step to the machine's limit?", roofline),
    ("Does verification stay linear in depth?", depth),
    ("What does the search itself cost?", overhead),
)
