"""Sections on solved puzzles, exactness and early exit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.results.tables import Figures, mark, number, parts, section, table

Found = Mapping[str, Mapping[str, Any]]

SETS = {"games-paper": "the paper's 100", "games-roots": "100 held-out roots", "games-states": "50 held-out states"}


def solved(found: Found) -> list[str]:
    """Strategy × set of puzzles: solved, interval, tokens sampled."""
    sets = {title: _by_strategy(found[name]["figures"]) for name, title in SETS.items() if name in found}
    if not sets:
        return []
    strategies = list(dict.fromkeys(strategy for rows in sets.values() for strategy in rows))

    def cell(strategy: str, title: str) -> str:
        row = sets[title].get(strategy)
        if row is None:
            return ""
        share = f"{row['solved']} ({row['low'] * row['n']:.0f}–{row['high'] * row['n']:.0f})"
        return f"{share}, {row['tokens'] / row['n']:,.0f} tok"

    bfs = next(iter(sets.values())).get("ToT-BFS b=5", {})
    saved = number(100 * bfs.get("prefill_saved", 0))
    return section(
        "The first answer must make 24 from exactly the given numbers, checked in rational arithmetic. *tok*: tokens sampled a"
        " puzzle, all branches counted. The best-of-n rows use an exact checker to select a chain; no other row does.",
        table("strategy", strategies, list(sets), cell),
        mark("ToT-BFS solves", bfs.get("solved"), least=90),
        f"Its prefill of prompts and paths is {saved} % less than with re-encoding every path, and no token is computed twice.",
    )


def _by_strategy(figures: Figures) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for name, value in figures.items():
        strategy, _, figure = name.rpartition(".")
        rows.setdefault(strategy, {})[figure] = value
    return rows


def exactness(found: Found) -> list[str]:
    """Family × route: the largest difference of a logit."""
    if "exactness" not in found:
        return []
    figures = found["exactness"]["figures"]
    families = parts(figures, "max_abs_diff")
    routes = {"chosen": "max_abs_diff", "other": "other_route"}

    def cell(route: str, family: str) -> str:
        return number(figures.get(f"{routes[route]}.{family}"))

    worst = max(figures[f"max_abs_diff.{family}"] for family in families)
    slow = [family for family in families if not figures[f"fast_path.{family}"]]
    return section(
        "Largest |Δlogit| between tree decoding and a fresh full forward pass: fp32, tiny random models, ragged trees with"
        " rollbacks.",
        table("route", list(routes), families, cell),
        mark("The largest difference is", worst, most=1e-4),
        f"The fast route is chosen for {'all but ' + ', '.join(slow) if slow else 'every family'}.",
        f"Refused with a reason: {', '.join(parts(figures, 'refused'))}.",
    )


def labels(found: Found) -> list[str]:
    """Model × figure: label probabilities compared with plain forward passes."""
    runs = {
        name.removeprefix("labels-"): found[name]["figures"] for name in found if name.partition("-")[0] == "labels"
    }
    if not runs:
        return []
    columns = {"largest difference": "max_abs_diff", "same decisions": "decisions_equal"}
    names = {"labels": "tiny random models"}
    rows = {names.get(name, name): figures for name, figures in runs.items()}
    worst = max(figures["max_abs_diff"] for figures in runs.values())
    return section(
        "Label probabilities of the engine compared with plain forward passes over whole labels: 12 label sets × 3 contexts.",
        table("model", list(rows), list(columns), lambda row, column: number(rows[row].get(columns[column]))),
        mark("The largest difference of a probability is", worst, most=1e-4),
    )


def early_exit(found: Found) -> list[str]:
    """Depth × share of layers saved, and errors."""
    if "cgee" not in found:
        return []
    figures = found["cgee"]["figures"]
    depths = parts(figures, "layers_saved_by_depth")
    refusals = [
        name.partition("-")[2]
        for name in found
        if name.startswith("cgee-") and found[name]["figures"].get("accepted") == "nothing"
    ]
    return section(
        f"Early exit is calibrated on {figures['calibration.problems']} other puzzles. Each of the {number(figures['n'])}"
        " questions that exit early is also read at full depth.",
        table("", ["layers saved"], [f"depth {depth}" for depth in depths],
              lambda _, column: number(figures[f"layers_saved_by_depth.{column.split()[1]}"])),
        mark("Share of layers saved over all depths:", figures["layers_saved"], least=0.6),
        mark("Share of exits with another decision:", figures["exit_error"], most=0.0037),
        mark("Its upper 95 % bound:", figures["exit_error_upper95"], most=0.01),
        f"Solved puzzles: {figures['solved_exit']} with early exit, {figures['solved_full']} without.",
        "No rule to skip siblings or to stop rivals passed its test, so these stay off.",
        f"No rule passed its test on {' and '.join(refusals)}: early exit stays off there." if refusals else "",
    )  # fmt: skip


SECTIONS = (
    ("Does tree search solve more?", solved),
    ("Is tree decoding exact?", exactness),
    ("Are the probabilities of labels with several tokens exact?", labels),
    ("How many verifier layers does early exit save?", early_exit),
)
